/* Pushes in one pass over memory, for float32; see native.py. The arrays don't overlap, except that a
   learner may receive the new weights in the array that it sends.

   Each chunk of the rows is first copied to the undo copy, `kept` is set to the end of the chunk, and
   then the chunk changes. So when a process is killed, everything beyond `kept` is unchanged, and
   everything before it has a copy. (A kill keeps the order of the stores; barriers make the compiler
   keep it.) */

#include <stddef.h>
#include <stdint.h>

/* Elements. 64 is as fast as intrinsics; 512 is slower by a fifth. */
#define CHUNK 64
#define LINE_BYTES 64

/* Add a multiple as torch does: with one rounding where the processor has FMA. (clang defines the
   other two macros.) */
#if defined(__FP_FAST_FMAF) || defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define ADD_MULTIPLE(to, factor, of) __builtin_fmaf(factor, of, to)
#else
#define ADD_MULTIPLE(to, factor, of) ((to) + (factor) * (of))
#endif

static inline void copy(float *restrict to, const float *restrict from, size_t count) {
    for (size_t i = 0; i < count; i++)
        to[i] = from[i];
}

/* Stores past the caches, in assembler: headers that immintrin.h includes are absent where programs
   are not built. */
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

/* Copy a chunk past the caches; `to` is aligned to a cache line. */
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

/* Order streamed stores before all later stores. */
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

/* A step with a server's momentum: v <- momentum * v + g; w <- w - rate * v. Without a velocity:
   w <- w - rate * g. g is mine for one learner; in a round (total + mine) / learners, where total is
   NULL if it was empty. It stays as it is: it means nothing once the round has ended. `into`, if not
   NULL, gets the new weights. */
void dlctl_step(
    float *weights, float *velocity, const float *total, const float *mine, float *into,
    float *weights_undo, float *velocity_undo, volatile int64_t *kept, size_t count,
    float learners, float rate, float momentum, int past_caches) {
    int streams = past_caches && (uintptr_t)into % LINE_BYTES == 0;
    for (size_t at = 0; at < count; at += CHUNK) {
        size_t length = count - at < CHUNK ? count - at : CHUNK;
        float *restrict w = weights + at;
        const float *direction = mine + at;
        float mean[CHUNK];
        copy(weights_undo + at, w, length);
        if (velocity)
            copy(velocity_undo + at, velocity + at, length);
        set_kept(kept, at + length);
        if (total || learners != 1.0f) {
            for (size_t i = 0; i < length; i++)
                mean[i] = (total ? total[at + i] + mine[at + i] : mine[at + i]) / learners;
            direction = mean;
        }
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

/* A push on a replica: total <- total + mine, or mine if the total was empty; `into`, if not NULL,
   gets the replica's weights. */
void dlctl_gather(
    float *total, const float *replica, const float *mine, float *into, float *total_undo,
    volatile int64_t *kept, size_t count, int empty, int past_caches) {
    int streams = past_caches && (uintptr_t)into % LINE_BYTES == 0;
    for (size_t at = 0; at < count; at += CHUNK) {
        size_t length = count - at < CHUNK ? count - at : CHUNK;
        float *t = total + at;
        if (empty) {
            copy(t, mine + at, length);
        } else {
            copy(total_undo + at, t, length);
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
   If total is not NULL: total <- total + alpha * d, or alpha * d if the total was empty. */
void dlctl_elastic(
    float *center, float *total, float *mine, float *center_undo, float *total_undo,
    volatile int64_t *kept, size_t count, float alpha, int empty) {
    for (size_t at = 0; at < count; at += CHUNK) {
        size_t length = count - at < CHUNK ? count - at : CHUNK;
        float *restrict c = center + at, *restrict m = mine + at;
        float d[CHUNK];
        copy(center_undo + at, c, length);
        if (total && !empty)
            copy(total_undo + at, total + at, length);
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
