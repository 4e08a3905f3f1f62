/* The worker threads of a library. They enter the executor's compiled code once and stay there until the last program is
 * destroyed, or the library is unloaded. The pool serves one run at a time; a run that finds it taken runs on its
 * caller's thread alone. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <xmmintrin.h>

#include "layout.h"
#include "plan.h"

#define STACK_BYTES ((size_t)8 << 20) /* what threads have on most systems: kernels keep small arrays there */
#define DEFAULT_ARITHMETIC 0x1F80u    /* MXCSR as processes start with it: round to nearest, denormals kept, no traps */

static int64_t pool[POOL_WORDS] __attribute__((aligned(MGX_ALIGNMENT)));
static int64_t fresh[POOL_WORDS]; /* the pool without any worker */
static int64_t allowed[POOL_MASK];
static int64_t numbers[MGX_MAX_THREADS];
static pthread_t threads[MGX_MAX_THREADS];
static int workers, users, may_grow;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

void mgx_lock(void)
{
    pthread_mutex_lock(&lock);
}

void mgx_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

int64_t *mgx_pool(void)
{
    return pool;
}

unsigned mgx_enter_arithmetic(void)
{
    const unsigned old = _mm_getcsr();
    if (old != DEFAULT_ARITHMETIC)
        _mm_setcsr(DEFAULT_ARITHMETIC);
    return old;
}

void mgx_leave_arithmetic(unsigned old)
{
    if (old != DEFAULT_ARITHMETIC)
        _mm_setcsr(old);
}

/* Whether the first line of a system file could be read. */
static int read_line(const char *path, char *line, int room)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    const int found = fgets(line, room, file) != NULL;
    fclose(file);
    return found;
}

/* CPUs' worth of time that the cgroup (version 2, then 1) grants. */
static double cgroup_quota(void)
{
    char line[128], period_line[128];
    double quota, period;
    if (read_line("/sys/fs/cgroup/cpu.max", line, sizeof line)) {
        if (sscanf(line, "%lf %lf", &quota, &period) == 2 && quota > 0 && period > 0)
            return quota / period;
    } else if (read_line("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", line, sizeof line)
               && read_line("/sys/fs/cgroup/cpu/cpu.cfs_period_us", period_line, sizeof period_line)) {
        quota = atof(line), period = atof(period_line);
        if (quota > 0 && period > 0)
            return quota / period;
    }
    return MGX_MAX_THREADS;
}

/* CPUs that this thread may use, 0 if not known, of how many cores they are, and their bits. */
static int count_cpus(int *cores, int64_t mask[POOL_MASK])
{
    char path[96], line[128];
    long first;
    cpu_set_t own, seen;
    memset(mask, 0, POOL_MASK * sizeof *mask);
    CPU_ZERO(&seen);
    *cores = 0;
    if (sched_getaffinity(0, sizeof own, &own))
        return 0;
    int cpus = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE && cpu < 64 * POOL_MASK; cpu++) {
        if (!CPU_ISSET(cpu, &own))
            continue;
        cpus++;
        mask[cpu / 64] |= (int64_t)((uint64_t)1 << cpu % 64);
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
        first = read_line(path, line, sizeof line) ? atol(line) : cpu; /* hardware threads of a core list the same */
        if (first < 0 || first >= CPU_SETSIZE)
            first = cpu;
        *cores += !CPU_ISSET((int)first, &seen);
        CPU_SET((int)first, &seen);
    }
    return cpus;
}

static int at_least_one(double value)
{
    return value < 1 ? 1 : value > MGX_MAX_THREADS ? MGX_MAX_THREADS : (int)value;
}

int mgx_default_threads(void)
{
    int cores;
    int64_t mask[POOL_MASK];
    count_cpus(&cores, mask);
    const double quota = cgroup_quota();
    return at_least_one(cores < quota ? cores : quota);
}

static int64_t address(const void *of)
{
    return (int64_t)(intptr_t)of;
}

static void fill_fresh(void)
{
    int cores;
    const int cpus = count_cpus(&cores, allowed);
    fresh[POOL_GATE] = POOL_CLOSED;
    fresh[POOL_WALK] = (int64_t)(intptr_t)MGX_EXECUTOR_WALK;
    fresh[POOL_CONFINE] = (int64_t)(intptr_t)MGX_EXECUTOR_CONFINE;
    fresh[POOL_CPUS] = cpus;
    fresh[POOL_ALLOWED] = address(allowed);
    fresh[POOL_NUMBERS] = address(numbers);
    fresh[POOL_AVOIDED] = -1;
    fresh[POOL_PATIENCE] = MGX_SPINS;
    fresh[POOL_YIELDS] = MGX_YIELDS;
    fresh[POOL_QUOTA] = at_least_one(cgroup_quota());
    fresh[POOL_SIBLINGS] = cores > 0 ? (cpus + cores / 2) / cores : 1;
}

/* Start over without any worker, with the lock held. */
static void reset(void)
{
    memcpy(pool, fresh, sizeof pool);
    workers = 0;
    may_grow = 1;
}

static void *work(void *number)
{
    char name[16]; /* the most that the system takes */
    const int64_t own = (int64_t)(intptr_t)number;
    snprintf(name, sizeof name, "mgx-worker-%d", (int)own);
    pthread_setname_np(pthread_self(), name);
    mgx_enter_arithmetic();
    __atomic_store_n(&numbers[own], syscall(SYS_gettid), __ATOMIC_RELEASE);
    MGX_EXECUTOR_WORKER(pool, own, 0);
    return NULL;
}

void mgx_ensure_workers(int wanted)
{
    pthread_attr_t attributes;
    sigset_t all, old;
    if (workers >= wanted - 1 || !may_grow)
        return;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals are for the threads of the process */
    while (workers < wanted - 1 && may_grow) {
        const int number = workers + 1;
        numbers[number] = 0;
        if (pthread_create(&threads[number], &attributes, work, (void *)(intptr_t)number)) {
            may_grow = 0;
            break;
        }
        while (!__atomic_load_n(&numbers[number], __ATOMIC_ACQUIRE))
            sched_yield(); /* with the lock held: nobody else may start this worker */
        workers = number;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attributes);
    pool[POOL_WORKERS] = workers;
    pool[POOL_SPINS] = workers < mgx_default_threads() ? MGX_SPINS : 0; /* pays while each has a core of its own */
    pool[POOL_GROWN] = 1;
}

/* End the workers, with the lock held. */
static void stop(void)
{
    if (workers) {
        MGX_EXECUTOR_WORKER(pool, 0, 0);
        for (int number = 1; number <= workers; number++)
            pthread_join(threads[number], NULL);
    }
    reset();
}

static void child_after_fork(void)
{
    reset(); /* threads do not come along */
    mgx_unlock();
}

static void prepare(void)
{
    pthread_atfork(mgx_lock, mgx_unlock, child_after_fork);
    fill_fresh();
    reset();
}

void mgx_add_user(void)
{
    pthread_once(&once, prepare);
    mgx_lock();
    users++;
    mgx_unlock();
}

void mgx_remove_user(void)
{
    mgx_lock();
    if (--users == 0)
        stop();
    mgx_unlock();
}

__attribute__((destructor)) static void unload(void)
{
    mgx_lock();
    if (workers)
        stop();
    may_grow = 0;
    mgx_unlock();
}
