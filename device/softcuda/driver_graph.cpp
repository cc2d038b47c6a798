// driver_graph.cpp - graphs: instances, launches, and what a program may ask about them.
#include <algorithm>
#include <cstdio>

#include "driver_state.h"

using namespace softcuda;

namespace {

int instantiate(Exec** out, Graph* g) {
  Driver& d = driver();
  if (!d.graphs.count(g)) return kInvalidValue;
  if (fault_due("cuGraphInstantiate")) return kOutOfMemory;
  auto exec = std::make_shared<Exec>();
  exec->nodes = g->nodes;
  exec->device = g->device;
  d.execs[exec.get()] = exec;
  *out = exec.get();
  return kOk;
}

const char* kind_name(int kind) {
  static const char* const names[] = {"KERNEL", "MEMCPY", "MEMSET",     "HOST",
                                      "GRAPH",  "EMPTY",  "WAIT_EVENT", "EVENT_RECORD"};
  return kind >= 0 && kind < 8 ? names[kind] : "?";
}

// Events outside of a graph are those of the moment of its launch: it waits for what was recorded
// before, and what waits for its own records from here on waits for this run of it.
std::vector<std::shared_ptr<Record>> records_of_launch(const Exec& exec) {
  std::vector<std::shared_ptr<Record>> records(exec.nodes.size());
  for (size_t i = 0; i < records.size(); i++)
    if (const Event* e = exec.nodes[i].work->wait_event) records[i] = e->last;
  for (size_t i = 0; i < records.size(); i++)
    if (Event* e = exec.nodes[i].work->record_event)
      e->last = records[i] = std::make_shared<Record>();
  return records;
}

}  // namespace

API cuGraphInstantiateWithFlags(Exec** out, Graph* g, unsigned long long) {
  ENTER;
  return instantiate(out, g);
}
API cuGraphInstantiate_v2(Exec** out, Graph* g, void**, char*, size_t) {
  ENTER;
  return instantiate(out, g);
}
API cuGraphDestroy(Graph* g) {
  HOLD;
  if (!d.graphs.erase(g)) return kInvalidValue;
  delete g;
  return kOk;
}
API cuGraphExecDestroy(Exec* exec) {
  HOLD;
  return d.execs.erase(exec) ? kOk : kInvalidValue;  // launches in streams keep it
}
API cuGraphUpload(Exec* exec, void* handle) {
  ENTER;
  int error = 0;
  find_stream(handle, error);
  return error ? error : d.execs.count(exec) ? kOk : kInvalidValue;
}
API cuGraphLaunch(Exec* exec, void* handle) {
  ENTER;
  int error = 0;
  Stream* s = find_stream(handle, error);
  if (error) return error;
  const auto found = d.execs.find(exec);
  if (found == d.execs.end()) return kInvalidValue;
  if (exec->device != s->device) return kInvalidContext;
  if (s->capture)
    return invalidate(*s->capture, kCaptureUnsupported);  // child graphs are not made here
  Work work;
  work.kind = kGraphNode;
  work.name = "graph";
  work.graph = found->second;
  if (const int refused = submit(*s, std::move(work))) return refused;
  s->queue.back().records = records_of_launch(*exec);
  return kOk;
}
API cuGraphGetNodes(Graph* g, GraphNodeHandle** nodes, size_t* count) {
  ENTER;
  if (!d.graphs.count(g)) return kInvalidValue;
  if (!nodes) return *count = g->nodes.size(), kOk;
  for (size_t i = 0; i < *count; i++) {
    nodes[i] = nullptr;
    if (i >= g->nodes.size()) continue;
    d.node_handles.push_back(std::make_unique<GraphNodeHandle>(GraphNodeHandle{g, i}));
    nodes[i] = d.node_handles.back().get();
  }
  *count = std::min(*count, g->nodes.size());
  return kOk;
}
API cuGraphNodeGetType(GraphNodeHandle* node, int* kind) {
  ENTER;
  if (!node || !d.graphs.count(node->graph)) return kInvalidValue;
  *kind = node->graph->nodes[node->index].work->kind;
  return kOk;
}
API cuGraphDebugDotPrint(Graph* g, const char* path, unsigned) {
  ENTER;
  if (!d.graphs.count(g)) return kInvalidValue;
  FILE* out = fopen(path, "w");
  if (!out) return kInvalidValue;
  fprintf(out, "digraph softcuda {\n  node [shape=box];\n");
  for (size_t i = 0; i < g->nodes.size(); i++) {
    fprintf(out, "  n%zu [label=\"%zu\\n%s\\n%s\"];\n", i, i, kind_name(g->nodes[i].work->kind),
            g->nodes[i].work->name.c_str());
    for (size_t before : g->nodes[i].dependencies) fprintf(out, "  n%zu -> n%zu;\n", before, i);
  }
  fprintf(out, "}\n");
  fclose(out);
  return kOk;
}

// Takes the arguments of `g`; the two must have the same nodes in the same order. Result (of
// CUgraphExecUpdateResultInfo): 0 success, 1 error, 2 topology changed, 3 type of a node changed, 4
// function changed, 5 parameters changed.
API cuGraphExecUpdate_v2(Exec* exec, Graph* g, int* result) {
  ENTER;
  const auto found = d.execs.find(exec);
  if (found == d.execs.end() || !d.graphs.count(g)) return kInvalidValue;
  int why = 0;
  if (exec->nodes.size() != g->nodes.size()) why = 2;
  for (size_t i = 0; !why && i < g->nodes.size(); i++) {
    const Node &was = exec->nodes[i], &now = g->nodes[i];
    if (was.dependencies != now.dependencies) why = 2;
    else if (was.work->kind != now.work->kind) why = 3;
  }
  *result = why;
  if (why) return kGraphUpdateFailure;
  // Launches under way keep the instance they began with.
  auto next = std::make_shared<Exec>();
  next->nodes = g->nodes;
  wait_until(hold, [&] { return !exec->running; });
  exec->nodes = g->nodes;
  return kOk;
}
