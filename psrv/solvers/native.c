/* Pushes in one pass over memory; see fused.py. Of float32; no two of the arrays overlap, but what a
   learner sends may be what it gets.

   Chunk by chunk the rows are copied aside, `kept` says how far, and then the chunk changes: who is
   killed in between leaves whole all that lies beyond `kept`, and a copy of all before. (A kill
   keeps the order of the stores. The compiler is made to.) */

#include <stddef.h>
#include <stdint.h>

/* Elements. With 64 it is as fast as one written with intrinsics, with 512 slower by a fifth. */
#define CHUNK 64
#define LINE_BYTES 64

/* As torch adds a multiple: rounded once where the processor can. (clang says so by the others.) */
#if defined(__FP_FAST_FMAF) || defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define ADD_MULTIPLE(to, factor, of) __builtin_fmaf(factor, of, to)
#else
#define ADD_MULTIPLE(to, factor, of) ((to) + (factor) * (of))
#endif

static inline void copy(float *restrict to, const float *restrict from, size_t count) {
    for (size_t i = 0; i < count; i++)
        to[i] = from[i];
}

/* Stores past the caches, in assembler: what immintrin.h includes is absent where programs are not
   built. */
#if defined(__AVX512F__)
typedef float wide __attribute__((vector_size(64), may_alias));
#define STORE "vmovntps"
#elif defined(__AVX__)
typedef float wide __attribute__((vector_size(32), may_alias));
#define STORE "vmovntps"
#elif defined(__SSE__)
typedef float wide __attribute__((vector_size(16), may_alias));
#define STORE "movntps"
#endif

/* Copy a chunk past the caches; `to` begins a line of them. */
static inline void stream(float *restrict to, const float *restrict from) {
#ifdef STORE
    for (size_t i = 0; i < CHUNK; i += sizeof(wide) / sizeof(float)) {
        wide value;
        __builtin_memcpy(&value, from + i, sizeof value);
        __asm__ volatile(STORE " %1, %0" : "=m"(*(wide *)(to + i)) : "x"(value));
    }
#else
    copy(to, from, CHUNK);
#endif
}

/* Have what was streamed arrive before what is stored from here on. */
static inline void finish(int streams) {
#ifdef STORE
    if (streams)
        __asm__ volatile("sfence" ::: "memory");
#else
    (void)streams;
#endif
}

static inline void set_kept(volatile int64_t *kept, size_t count) {
    __asm__ volatile("" ::: "memory");
    *kept = (int64_t)count;
    __asm__ volatile("" ::: "memory");
}

/* Downpour SGD with a server's momentum: v <- momentum * v + g; w <- w - rate * v.
   Without a velocity: w <- w - rate * g. `into`, if there is one, gets the new weights. */
void dlctl_downpour(
    float *weights, float *velocity, const float *gradient, float *into, float *weights_aside,
    float *velocity_aside, volatile int64_t *kept, size_t count, float rate, float momentum,
    int past_caches) {
    int streams = past_caches && (uintptr_t)into % LINE_BYTES == 0;
    for (size_t at = 0; at < count; at += CHUNK) {
        size_t length = count - at < CHUNK ? count - at : CHUNK;
        float *restrict w = weights + at;
        const float *direction = gradient + at;
        copy(weights_aside + at, w, length);
        if (velocity)
            copy(velocity_aside + at, velocity + at, length);
        set_kept(kept, at + length);
        if (velocity) {
            float *v = velocity + at;
            for (size_t i = 0; i < length; i++)
                v[i] = momentum * v[i] + direction[i];
            direction = v;
        }
        for (size_t i = 0; i < length; i++)
            w[i] = ADD_MULTIPLE(w[i], -rate, direction[i]);
        if (into && streams && length == CHUNK)
            stream(into + at, w);
        else if (into)
            copy(into + at, w, length);
    }
    finish(streams);
}

/* The same where another node is the home: total <- total + mine, or mine, if it was empty; and
   `into`, if there is one, gets the replica. */
void dlctl_gather(
    float *total, const float *replica, const float *mine, float *into, float *total_aside,
    volatile int64_t *kept, size_t count, int empty, int past_caches) {
    int streams = past_caches && (uintptr_t)into % LINE_BYTES == 0;
    for (size_t at = 0; at < count; at += CHUNK) {
        size_t length = count - at < CHUNK ? count - at : CHUNK;
        float *t = total + at;
        if (empty) {
            copy(t, mine + at, length);
        } else {
            copy(total_aside + at, t, length);
            set_kept(kept, at + length);
            for (size_t i = 0; i < length; i++)
                t[i] = t[i] + mine[at + i];
        }
        if (into && streams && length == CHUNK)
            stream(into + at, replica + at);
        else if (into)
            copy(into + at, replica + at, length);
    }
    finish(streams);
}

/* Elastic averaging: d = mine - center; mine <- mine - alpha * d; center <- center + alpha * d.
   With a total, total <- total + alpha * d, or alpha * d, if it was empty. */
void dlctl_elastic(
    float *center, float *total, float *mine, float *center_aside, float *total_aside,
    volatile int64_t *kept, size_t count, float alpha, int empty) {
    for (size_t at = 0; at < count; at += CHUNK) {
        size_t length = count - at < CHUNK ? count - at : CHUNK;
        float *restrict c = center + at, *restrict m = mine + at;
        float d[CHUNK];
        copy(center_aside + at, c, length);
        if (total && !empty)
            copy(total_aside + at, total + at, length);
        set_kept(kept, at + length);
        for (size_t i = 0; i < length; i++) {
            d[i] = m[i] - c[i];
            m[i] = ADD_MULTIPLE(m[i], -alpha, d[i]);
            c[i] = ADD_MULTIPLE(c[i], alpha, d[i]);
        }
        if (total)
            for (size_t i = 0; i < length; i++)
                total[at + i] = ADD_MULTIPLE(empty ? 0.0f : total[at + i], alpha, d[i]);
    }
}

/* The last push of a round: v <- momentum * v + (total + mine) / learners; w <- w - rate * v.
   Without a velocity, w <- w - rate * (total + mine) / learners. The total stays as it is: it means
   nothing once the round has ended. */
void dlctl_mean_step(
    float *weights, float *velocity, const float *total, const float *mine, float *weights_aside,
    float *velocity_aside, volatile int64_t *kept, size_t count, int empty, float learners,
    float rate, float momentum) {
    for (size_t at = 0; at < count; at += CHUNK) {
        size_t length = count - at < CHUNK ? count - at : CHUNK;
        float *restrict w = weights + at;
        float direction[CHUNK];
        copy(weights_aside + at, w, length);
        if (velocity)
            copy(velocity_aside + at, velocity + at, length);
        set_kept(kept, at + length);
        for (size_t i = 0; i < length; i++)
            direction[i] = (empty ? mine[at + i] : total[at + i] + mine[at + i]) / learners;
        if (velocity) {
            float *v = velocity + at;
            for (size_t i = 0; i < length; i++)
                direction[i] = v[i] = momentum * v[i] + direction[i];
        }
        for (size_t i = 0; i < length; i++)
            w[i] = ADD_MULTIPLE(w[i], -rate, direction[i]);
    }
}
