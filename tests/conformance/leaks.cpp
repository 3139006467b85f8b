// What the leak checker of a sanitizer build is not to report: a ucx worker that was broken off stays in memory, and
// UCX keeps some of what belongs to it where no pointer leads (transports/ucx/worker.cpp).
extern "C" __attribute__((visibility("default"))) const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:libucs.so\nleak:libuct.so\nleak:libucp.so\n"; }
