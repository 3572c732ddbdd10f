/* A stand-in for NVIDIA's driver library: two GPUs, one of which lacks most sensors. */
typedef struct { int index; } device;
typedef struct { unsigned long long total, available, used; } memory;
typedef struct { unsigned int gpu, memory; } rates;
typedef struct { device *device; unsigned long long type, data; unsigned int gpu, compute; } event;

static device devices[2] = {{0}, {1}};
static int waits;
enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, TIMEOUT = 10 };

int nvmlInitWithFlags(unsigned int flags) { return OK; }
const char *nvmlErrorString(int code) { return "fake"; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 2; return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, device **found) {
    if (index > 1) return NOT_FOUND;
    *found = &devices[index];
    return OK;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, device **found) {
    if (uuid[0] != 'G') return NOT_FOUND;
    *found = &devices[1];
    return OK;
}

int nvmlDeviceGetUtilizationRates(device *d, rates *r) {
    r->gpu = d->index ? 7 : 31;
    r->memory = 5;
    return OK;
}

int nvmlDeviceGetMemoryInfo(device *d, memory *m) {
    m->total = 1000;
    m->used = 250 + d->index;
    m->available = 750;
    return OK;
}

int nvmlDeviceGetPowerUsage(device *d, unsigned int *milliwatts) {
    if (d->index) return NOT_SUPPORTED;
    *milliwatts = 123500;
    return OK;
}

int nvmlDeviceGetTemperature(device *d, int sensor, unsigned int *degrees) {
    if (d->index) return NOT_SUPPORTED;
    *degrees = 61;
    return OK;
}

int nvmlDeviceGetTotalEccErrors(device *d, int kind, int counter, unsigned long long *errors) {
    if (d->index || kind != 1 || counter != 0) return NOT_SUPPORTED;
    *errors = 2;
    return OK;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(device *d, unsigned long long *reasons) {
    *reasons = d->index ? 0x1 : 0x4 | 0x20; /* idle; power cap and heat */
    return OK;
}

int nvmlEventSetCreate(void **set) { *set = &waits; return OK; }
int nvmlDeviceRegisterEvents(device *d, unsigned long long types, void *set) { return OK; }

int nvmlEventSetWait_v2(void *set, event *e, unsigned int milliseconds) {
    if (++waits != 3) return TIMEOUT; /* an error between the second sample and the third */
    e->device = &devices[0];
    e->type = 8;
    e->data = 79;
    return OK;
}
