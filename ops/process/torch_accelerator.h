// Keeps CUDA as PyTorch's accelerator on a machine with a GPU.
//
// PyTorch has one accelerator per process. As soon as a PrivateUse1 device has a name, it takes
// that one (ATen/DeviceAccelerator.cpp). Autograd then orders only its streams, and a backward pass
// of CUDA tensors ends in an internal assertion (pytorch/pytorch#161129). So importing this package
// would break programs that use torch.cuda and nothing of ours.
//
// If there is a GPU and torch has CUDA, the accelerator thus stays CUDA, including
// `torch.accelerator`. The entries by which PyTorch's libraries call
// at::accelerator::getAccelerator and isAccelerator lead to functions here. To autograd, a hetero
// tensor is then one without streams, as on the CPU. Our streams are one order of the program
// anyway (device.cpp). Without a GPU nothing changes.
//
// Thread safety: called once, before other threads use PyTorch.

#pragma once

namespace hetero::ops {

void keep_cuda_the_accelerator();

}  // namespace hetero::ops
