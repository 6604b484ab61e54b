// Streams and graphs with owners.
#pragma once

#include "tests/gpu/support.h"

namespace attune::gpu {

struct StreamOwner {
  runtime::Stream stream = device()->create_stream();
  ~StreamOwner() { device()->destroy_stream(stream); }
};

/// What `body` queues on the stream, captured.
struct Graph {
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;

  template <typename Body>
  Graph(runtime::Stream stream, const Body& body) {
    device()->make_current();  // launches leave the caller's context as it was, which may be none
    const runtime::Driver& d = runtime::Driver::get();
    d.check(d.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
    body();
    d.check(d.cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
    d.check(d.cuGraphInstantiate(&executable, graph, 0), "cuGraphInstantiate");
  }
  ~Graph() {
    runtime::Driver::get().cuGraphExecDestroy(executable);
    runtime::Driver::get().cuGraphDestroy(graph);
  }
  void launch(runtime::Stream stream) const {
    runtime::Driver::get().check(runtime::Driver::get().cuGraphLaunch(executable, stream), "cuGraphLaunch");
  }
};

}  // namespace attune::gpu
