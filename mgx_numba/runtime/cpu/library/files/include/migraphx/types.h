/* Element types and status numbers that MIGraphX's C and C++ interfaces share. */
#ifndef MIGRAPHX_TYPES_H
#define MIGRAPHX_TYPES_H

#include "../mgx_numba.h"

typedef enum migraphx_status {
    migraphx_status_success = 0,
    migraphx_status_bad_param = 1, /* a parameter is NULL, or has a wrong value */
    migraphx_status_unknown_target = 3,
    migraphx_status_unknown_error = 4
} migraphx_status;

typedef enum migraphx_compile_mode {
    migraphx_compile_mode_eager = 0,
    migraphx_compile_mode_balanced = 50,
    migraphx_compile_mode_max = 100
} migraphx_compile_mode;

#define MGX_TYPES(m) \
    m(bool_type, MGX_BOOL) \
    m(half_type, MGX_HALF) \
    m(float_type, MGX_FLOAT) \
    m(double_type, MGX_DOUBLE) \
    m(uint8_type, MGX_UINT8) \
    m(int8_type, MGX_INT8) \
    m(uint16_type, MGX_UINT16) \
    m(int16_type, MGX_INT16) \
    m(int32_type, MGX_INT32) \
    m(int64_type, MGX_INT64) \
    m(uint32_type, MGX_UINT32) \
    m(uint64_type, MGX_UINT64) \
    m(fp8e4m3fnuz_type, MGX_FP8E4M3FNUZ) \
    m(fp8e4m3fn_type, MGX_FP8E4M3FN) \
    m(fp8e5m2_type, MGX_FP8E5M2) \
    m(bf16_type, MGX_BF16) \
    m(fp8e5m2fnuz_type, MGX_FP8E5M2FNUZ) \
    m(tuple_type, MGX_TUPLE) \
    m(fp4x2_type, MGX_FP4X2)

#ifdef __cplusplus
typedef mgx_type migraphx_shape_datatype_t;
#define MGX_CONSTANT(name, value) constexpr mgx_type migraphx_shape_##name = value;
MGX_TYPES(MGX_CONSTANT)
#else
#define MGX_CONSTANT(name, value) migraphx_shape_##name = value,
typedef enum migraphx_shape_datatype_t { MGX_TYPES(MGX_CONSTANT) } migraphx_shape_datatype_t;
#endif
#undef MGX_CONSTANT

/* Element types of tensors, each with the name of its type in C, or in MIGraphX's C++ where C has none. */
#define MIGRAPHX_SHAPE_VISIT_TYPES(m) \
    m(bool_type, bool) \
    m(half_type, half) \
    m(float_type, float) \
    m(double_type, double) \
    m(uint8_type, uint8_t) \
    m(int8_type, int8_t) \
    m(uint16_type, uint16_t) \
    m(int16_type, int16_t) \
    m(int32_type, int32_t) \
    m(int64_type, int64_t) \
    m(uint32_type, uint32_t) \
    m(uint64_type, uint64_t) \
    m(fp8e4m3fnuz_type, migraphx::fp8::fp8e4m3fnuz) \
    m(fp8e4m3fn_type, migraphx::fp8::fp8e4m3fn) \
    m(fp8e5m2_type, migraphx::fp8::fp8e5m2) \
    m(bf16_type, bf16) \
    m(fp8e5m2fnuz_type, migraphx::fp8::fp8e5m2fnuz)

#endif
