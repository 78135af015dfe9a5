// Threads that sleep between jobs: nothing spins beside other work, and workers inherit
// the affinity mask of the thread that first asked for them.
#pragma once

// Runs work(context) on `threads` threads, the caller among them, and waits for all.
void run_parallel(int threads, void (*work)(void*), void* context);
