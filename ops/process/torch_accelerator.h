// What PyTorch calls the accelerator, where the machine has a GPU too.
//
// PyTorch has one accelerator in a process, and takes a PrivateUse1 device for it as soon as that has a name (ATen/DeviceAccelerator.cpp). Autograd then orders the
// streams of that one only, and a backward pass of CUDA tensors ends in an internal assertion (pytorch/pytorch#161129): importing this package would break
// programs that use torch.cuda and nothing of ours. So where there is a GPU, and torch has CUDA, the accelerator stays CUDA, `torch.accelerator` included: the entries by
// which PyTorch's libraries call at::accelerator::getAccelerator and isAccelerator lead to functions here. To autograd a tensor on hetero is then one without
// streams, as on the CPU; our streams are one order of the program anyway (device.cpp). Without a GPU nothing is changed.
//
// Thread safety: called once, before other threads use PyTorch.

#pragma once

namespace hetero::ops {

void keep_cuda_the_accelerator();

}  // namespace hetero::ops
