/* Vectors as wide as the processor's registers, in GCC's vector extensions, and small functions on
 * them. */
#pragma once
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __SSE2__
#include <immintrin.h>
#endif
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VNNI__)
#define HAS_VNNI 1
#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#define HAS_AMX 1
#endif
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define HAS_AVX2 1
#endif

#define LANES 16 /* rows of a panel, positions of a strip of keys */
#define INLINE static inline __attribute__((always_inline))

/* Numbers of a vector. Wider ones would live in memory where loops keep many of them. */
#if defined(HAS_VNNI)
#define WIDTH 16
#elif defined(HAS_AVX2)
#define WIDTH 8
#else
#define WIDTH 4
#endif
#define PARTS (LANES / WIDTH)
#if defined(HAS_VNNI) || defined(HAS_AVX2)
#define UNROLL _Pragma("GCC unroll 48")
#else
#define UNROLL /* the portable build is small rather than fast */
#endif

/* Have both in registers at this point, and what they are made of not made again in another order. */
#if defined(__SSE2__)
#define IN_REGISTERS(a, b) __asm__("" : "+x"(a), "+x"(b))
#else
#define IN_REGISTERS(a, b) (void)0
#endif

typedef float floats __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef uint32_t uints __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef uint16_t halves __attribute__((vector_size(2 * WIDTH), aligned(2), may_alias));
typedef int8_t bytes __attribute__((vector_size(WIDTH), aligned(1), may_alias));
typedef int32_t word __attribute__((aligned(1), may_alias));

INLINE floats splat(float x) { return (floats){} + x; }

INLINE floats load(const float *p) { return *(const floats *)p; }

INLINE void store(float *p, floats x) { *(floats *)p = x; }

INLINE floats larger(floats a, floats b) {
#if defined(HAS_VNNI)
    return (floats)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(HAS_AVX2)
    return (floats)_mm256_max_ps((__m256)a, (__m256)b);
#else
    ints mask = a > b;
    return (floats)(((ints)a & mask) | ((ints)b & ~mask));
#endif
}

INLINE float sum_of(floats x) {
#ifdef HAS_VNNI
    return _mm512_reduce_add_ps((__m512)x);
#elif defined(HAS_AVX2)
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
#else
    float total = 0;
    for (int i = 0; i < WIDTH; i++) total += x[i];
    return total;
#endif
}

INLINE int sum_of_ints(ints x) {
#ifdef HAS_VNNI
    return _mm512_reduce_add_epi32((__m512i)x);
#elif defined(HAS_AVX2)
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128((__m256i)x), _mm256_extracti128_si256((__m256i)x, 1));
    sum = _mm_add_epi32(sum, _mm_unpackhi_epi64(sum, sum));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 1)));
#else
    int total = 0;
    for (int i = 0; i < WIDTH; i++) total += x[i];
    return total;
#endif
}

INLINE float largest_of(floats x) {
#if defined(HAS_VNNI)
    return _mm512_reduce_max_ps((__m512)x);
#elif defined(HAS_AVX2)
    __m128 most = _mm_max_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1));
    most = _mm_max_ps(most, _mm_movehl_ps(most, most));
    return _mm_cvtss_f32(_mm_max_ss(most, _mm_movehdup_ps(most)));
#else
    float best = x[0];
    for (int i = 1; i < WIDTH; i++) best = x[i] > best ? x[i] : best;
    return best;
#endif
}

/* NaN is above everything. */
INLINE int is_any_above(floats x, float limit) {
#if defined(HAS_VNNI)
    return _mm512_cmp_ps_mask((__m512)x, (__m512)splat(limit), _CMP_NLE_UQ) != 0;
#elif defined(HAS_AVX2)
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256)x, (__m256)splat(limit), _CMP_NLE_UQ)) != 0;
#else
    int above = 0;
    for (int i = 0; i < WIDTH; i++) above |= !(x[i] <= limit);
    return above;
#endif
}

INLINE float half_to_float(uint16_t half) {
#if defined(HAS_VNNI) || defined(HAS_AVX2)
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
#else
    union { uint32_t bits; float value; } magnitude = {(uint32_t)(half & 0x7fff) << 13};
    float value = magnitude.value * 0x1p112f;
    return half & 0x8000 ? -value : value;
#endif
}

INLINE floats halves_to_floats(const uint16_t *p) {
#if defined(HAS_VNNI)
    return (floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#elif defined(HAS_AVX2)
    return (floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
#else
    ints wide = __builtin_convertvector(*(const halves *)p, ints);
    floats magnitude = (floats)((wide & 0x7fff) << 13) * 0x1p112f;
    return (floats)((ints)magnitude | ((wide & 0x8000) << 16));
#endif
}

INLINE uint16_t float_to_half(float x) {
    const float limit = 65504.0f;
    x = x > limit ? limit : x < -limit ? -limit : x;
#if defined(HAS_VNNI) || defined(HAS_AVX2)
    return (uint16_t)_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(x), 0));
#else
    union { float value; uint32_t bits; } in = {x};
    uint32_t sign = in.bits >> 16 & 0x8000;
    in.bits &= 0x7fffffff;
    union { float value; uint32_t bits; } out = {in.value * 0x1p-112f};
    uint32_t rounded = out.bits + 0xfff + (out.bits >> 13 & 1);
    return (uint16_t)(sign | rounded >> 13);
#endif
}

/* What float16 cannot hold becomes the largest that it can. */
INLINE void floats_to_halves(floats x, uint16_t *to) {
#if defined(HAS_VNNI) || defined(HAS_AVX2)
    const floats limit = splat(65504.0f);
    x = -larger(-limit, -larger(-limit, x)); /* in this order NaN stays NaN */
#endif
#if defined(HAS_VNNI)
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT));
#elif defined(HAS_AVX2)
    _mm_storeu_si128((__m128i *)to, _mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT));
#else
    for (int i = 0; i < WIDTH; i++) to[i] = float_to_half(x[i]);
#endif
}

/* 1 / x, within two units of the last place: a division takes five times as long. */
INLINE floats inverse_of(floats x) {
#ifdef HAS_VNNI
    floats guess = (floats)_mm512_rcp14_ps((__m512)x);
    return guess * (2.0f - x * guess);
#else
    return 1.0f / x;
#endif
}

/* e^x for x up to 88; a polynomial on [-0.5, 0.5] of the base-2 exponent (Cephes' coefficients). */
INLINE floats exp_of(floats x) {
    floats low = splat(-87.0f), high = splat(88.0f);
    x = larger(x, low);
    x = -larger(-x, -high);
    floats scaled = x * 1.44269504f;
    ints whole = __builtin_convertvector(scaled + (floats)(((ints)scaled & (int32_t)0x80000000) | (ints)splat(0.5f)), ints);
    floats n = __builtin_convertvector(whole, floats);
    floats r = x - n * 0.693359375f + n * 2.12194440e-4f;
    floats p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * (floats)((whole + 127) << 23);
}

#ifdef HAS_VNNI
/* 2 to the power of x, within 8 parts in 10^5: what becomes of it is kept in bfloat16. */
INLINE floats power_of_2(floats x) {
    floats whole = (floats)_mm512_roundscale_ps((__m512)x, 0), r = x - whole;
    floats p = splat(5.517167e-2f);
    p = p * r + 2.4261114e-1f;
    p = p * r + 6.9326099e-1f;
    p = p * r + 9.9992807e-1f;
    return (floats)_mm512_scalef_ps((__m512)p, (__m512)whole);
}
#endif

/* x / (1 + e^-x). */
INLINE floats silu(floats x) { return x * inverse_of(exp_of(-x) + 1.0f); }

#ifdef HAS_VNNI
/* The same within what bfloat16 can tell, for less than half as much. */
INLINE floats rough_silu(floats x) {
    return x * (floats)_mm512_rcp14_ps((__m512)(power_of_2(x * -1.44269504f) + 1.0f));
}
#endif
