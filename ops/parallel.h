// Connecting backend/'s parallel_for and worker threads to ATen's thread pool, so that there is one pool.

#pragma once

namespace hetero::ops {

void connect_thread_pool();

}  // namespace hetero::ops
