// The differences between the versions of torch that hetero builds with: 2.11, which is pinned, and
// the newest, which `make compat` tries.
//
// No other file asks for a version. The presence of a header tells a difference, so this also holds
// for nightly builds.

#pragma once

// Named tensors, and with them the overloads that take a Dimname; gone in 2.15.
#if __has_include(<ATen/core/NamedTensor.h>)
#define HETERO_HAS_NAMED_TENSORS 1
#else
#define HETERO_HAS_NAMED_TENSORS 0
#endif

// torch.cholesky and torch.qr, which torch.linalg replaced; gone in 2.15.
#if __has_include(<ATen/ops/cholesky.h>) && __has_include(<ATen/ops/qr.h>)
#define HETERO_HAS_OLD_FACTORIZATIONS 1
#else
#define HETERO_HAS_OLD_FACTORIZATIONS 0
#endif
