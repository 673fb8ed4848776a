// Functions that built-in kernels call. A kernel gets only those that it needs: each begins with
// `fn` at the start of a line, and what it calls is found by name.
//
// Elementary functions are our own, so that they are within 4 ulp on every device: the APIs
// promise less (Vulkan's sin may be off by 2^-11). f32: the polynomials of the Cephes library;
// f64: those of FreeBSD's msun. Whole ranges are reduced with the bits of 2/pi (Payne and Hanek).

fn inf_f32() -> f32 {
    var bits = 0x7f800000u;
    return bitcast<f32>(bits);
}

fn nan_f32() -> f32 {
    var bits = 0x7fc00000u;
    return bitcast<f32>(bits);
}

fn is_nan_f32(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

fn is_inf_f32(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u;
}

fn min_f32(a: f32, b: f32) -> f32 {
    return select(select(b, a, a < b), a, is_nan_f32(b));
}

fn max_f32(a: f32, b: f32) -> f32 {
    return select(select(b, a, a > b), a, is_nan_f32(b));
}

// The 16-bit floats by their bits, rounded to the nearest, halves to even.
fn f16_of(h: u32) -> f32 {
    let sign = (h & 0x8000u) << 16u;
    let exponent = (h >> 10u) & 31u;
    let mantissa = h & 0x3ffu;
    let small = bitcast<u32>(f32(mantissa) * 5.9604644775390625e-8);
    let large = ((exponent + select(112u, 224u, exponent == 31u)) << 23u) | (mantissa << 13u);
    return bitcast<f32>(sign | select(large, small, exponent == 0u));
}

fn f16_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let sign = (bits >> 16u) & 0x8000u;
    let a = bits & 0x7fffffffu;
    if a > 0x7f800000u {
        return sign | 0x7e00u;
    }
    if a >= 0x47800000u {
        return sign | 0x7c00u;
    }
    if a >= 0x38800000u {
        let r = a - 0x38000000u;
        return sign | ((r + 0xfffu + ((r >> 13u) & 1u)) >> 13u);
    }
    let e = a >> 23u;
    if e < 102u {
        return sign;
    }
    let m = (a & 0x7fffffu) | 0x800000u;
    let shift = 126u - e;
    let r = m >> shift;
    let rest = m & ((1u << shift) - 1u);
    let half = 1u << (shift - 1u);
    let up = rest > half || (rest == half && (r & 1u) == 1u);
    return sign | (r + select(0u, 1u, up));
}

fn bf16_of(h: u32) -> f32 {
    return bitcast<f32>(h << 16u);
}

fn bf16_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let rounded = (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
    return select(rounded, (bits >> 16u) | 0x40u, (bits & 0x7fffffffu) > 0x7f800000u);
}

// The product of two words in two words, the lower first. (Where there is u64, `mul_wide` is made of
// that.)
fn mul_wide(a: u32, b: u32) -> vec2<u32> {
    let al = a & 0xffffu;
    let ah = a >> 16u;
    let bl = b & 0xffffu;
    let bh = b >> 16u;
    let low = al * bl;
    let mid = ah * bl + (low >> 16u);
    let cross = al * bh + (mid & 0xffffu);
    return vec2<u32>(a * b, ah * bh + (mid >> 16u) + (cross >> 16u));
}

fn philox_round(c: vec4<u32>, k: vec2<u32>) -> vec4<u32> {
    let first = mul_wide(0xd2511f53u, c.x);
    let second = mul_wide(0xcd9e8d57u, c.z);
    return vec4<u32>(second.y ^ c.y ^ k.x, second.x, first.y ^ c.w ^ k.y, first.x);
}

// Philox 4x32-10 (Salmon et al., 2011), its loop unrolled.
fn philox(counter: vec4<u32>, key: vec2<u32>) -> vec4<u32> {
    let step = vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
    let c0 = philox_round(counter, key);
    let c1 = philox_round(c0, key + step);
    let c2 = philox_round(c1, key + step * 2u);
    let c3 = philox_round(c2, key + step * 3u);
    let c4 = philox_round(c3, key + step * 4u);
    let c5 = philox_round(c4, key + step * 5u);
    let c6 = philox_round(c5, key + step * 6u);
    let c7 = philox_round(c6, key + step * 7u);
    let c8 = philox_round(c7, key + step * 8u);
    return philox_round(c8, key + step * 9u);
}

// The bits of the four places that have the counter `place / 4`.
fn random_four(place: vec2<u32>, stream: u32, key: vec2<u32>) -> vec4<u32> {
    let counter = vec4<u32>((place.x >> 2u) | (place.y << 30u), place.y >> 2u, stream, 0u);
    return philox(counter, key);
}

fn random_at(place: vec2<u32>, stream: u32, key: vec2<u32>) -> u32 {
    return random_four(place, stream, key)[place.x & 3u];
}

fn pow_u32(base: u32, exponent: u32) -> u32 {
    var result = 1u;
    var square = base;
    for (var rest = exponent; rest > 0u; rest = rest >> 1u) {
        if (rest & 1u) == 1u {
            result *= square;
        }
        square *= square;
    }
    return result;
}

fn pow_i32(base: i32, exponent: i32) -> i32 {
    if exponent < 0 {
        if base == 1 {
            return 1;
        }
        if base == -1 {
            return select(-1, 1, (exponent & 1) == 0);
        }
        return 0;
    }
    return bitcast<i32>(pow_u32(bitcast<u32>(base), bitcast<u32>(exponent)));
}

fn pow_u64(base: u64, exponent: u64) -> u64 {
    var result = 1lu;
    var square = base;
    for (var rest = exponent; rest > 0lu; rest = rest >> 1u) {
        if (rest & 1lu) == 1lu {
            result *= square;
        }
        square *= square;
    }
    return result;
}

fn pow_i64(base: i64, exponent: i64) -> i64 {
    if exponent < 0li {
        if base == 1li {
            return 1li;
        }
        if base == -1li {
            return select(-1li, 1li, (exponent & 1li) == 0li);
        }
        return 0li;
    }
    return bitcast<i64>(pow_u64(bitcast<u64>(base), bitcast<u64>(exponent)));
}

// Rust's `%`: exact, with the sign of the dividend.
fn rem_f32(x: f32, y: f32) -> f32 {
    let sign = bitcast<u32>(x) & 0x80000000u;
    let a = bitcast<u32>(x) & 0x7fffffffu;
    let b = bitcast<u32>(y) & 0x7fffffffu;
    if b == 0u || a >= 0x7f800000u || b > 0x7f800000u {
        return nan_f32();
    }
    if a < b {
        return x;
    }
    if a == b {
        return bitcast<f32>(sign);
    }
    var ex = i32(a >> 23u);
    var ey = i32(b >> 23u);
    var mx = (a & 0x7fffffu) | 0x800000u;
    var my = (b & 0x7fffffu) | 0x800000u;
    if ex == 0 {
        let shift = countLeadingZeros(a) - 8u;
        mx = a << shift;
        ex = 1 - i32(shift);
    }
    if ey == 0 {
        let shift = countLeadingZeros(b) - 8u;
        my = b << shift;
        ey = 1 - i32(shift);
    }
    while ex > ey {
        mx = select(mx, mx - my, mx >= my) << 1u;
        ex -= 1;
    }
    mx = select(mx, mx - my, mx >= my);
    if mx == 0u {
        return bitcast<f32>(sign);
    }
    let shift = countLeadingZeros(mx) - 8u;
    mx = mx << shift;
    ex -= i32(shift);
    if ex > 0 {
        return bitcast<f32>(sign | (mx & 0x7fffffu) | (u32(ex) << 23u));
    }
    return bitcast<f32>(sign | (mx >> u32(1 - ex)));
}

fn two_over_pi(word: i32) -> u32 {
    var bits = array<u32, 40>(
        0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u,
        0xfe5163abu, 0xdebbc561u, 0xb7246e3au, 0x424dd2e0u, 0x06492eeau, 0x09d1921cu,
        0xfe1deb1cu, 0xb129a73eu, 0xe88235f5u, 0x2ebb4484u, 0xe99c7026u, 0xb45f7e41u,
        0x3991d639u, 0x835339f4u, 0x9c845f8bu, 0xbdf9283bu, 0x1ff897ffu, 0xde05980fu,
        0xef2f118bu, 0x5a0a6d1fu, 0x6d367ecfu, 0x27cb09b7u, 0x4f463f66u, 0x9e5fea2du,
        0x7527bac7u, 0xebe5f17bu, 0x3d0739f7u, 0x8a5292eau, 0x6bfb5fb1u, 0x1f8d5d08u,
        0x56033046u, 0xfc7b6babu, 0xf0cfbc20u, 0x9af4361du);
    if word < 0 || word > 39 {
        return 0u;
    }
    return bits[word];
}

// 32 bits of 2/pi from a bit on; bit 0 has the weight 1/2, what comes before is 0.
fn two_over_pi_at(bit: i32) -> u32 {
    let word = bit >> 5u;
    let shift = u32(bit & 31);
    let high = two_over_pi(word) << shift;
    return select(high | (two_over_pi(word + 1) >> ((32u - shift) & 31u)), high, shift == 0u);
}

struct Reduced32 { r: f32, quadrant: u32 }

// x - quadrant * pi/2, within pi/4 of 0.
fn reduce_f32(x: f32) -> Reduced32 {
    let size = abs(x);
    if size < 1024.0 {
        let n = round(x * 0.6366197723675814);
        var r = x - n * 1.5703125;
        r = r - n * 0.0004837512969970703;
        r = r - n * 7.549533620476723e-8;
        r = r - n * 2.563344151594519e-12;
        return Reduced32(r, bitcast<u32>(i32(n)));
    }
    return reduce_large_f32(x);
}

fn reduce_large_f32(x: f32) -> Reduced32 {
    let bits = bitcast<u32>(x);
    let e = i32((bits >> 23u) & 255u) - 150;
    if e > 104 {
        return Reduced32(nan_f32(), 0u);
    }
    let m = (bits & 0x7fffffu) | 0x800000u;
    // 96 bits whose first has the weight 2 once they are multiplied by the mantissa.
    let low = mul_wide(m, two_over_pi_at(e - 2 + 64));
    let mid = mul_wide(m, two_over_pi_at(e - 2 + 32));
    let p1 = mid.x + low.y;
    let p0 = m * two_over_pi_at(e - 2) + mid.y + select(0u, 1u, p1 < mid.x);
    var quadrant = p0 >> 30u;
    var high = (p0 << 2u) | (p1 >> 30u);
    var rest = (p1 << 2u) | (low.x >> 30u);
    let negative = high >= 0x80000000u;
    if negative {
        quadrant += 1u;
        high = ~high + select(0u, 1u, rest == 0u);
        rest = ~rest + 1u;
    }
    var zeros = countLeadingZeros(high);
    if zeros == 32u {
        high = rest;
        rest = 0u;
        zeros = countLeadingZeros(high);
        let part = high << (zeros & 31u);
        let scale = bitcast<f32>((63u - zeros) << 23u);
        let tiny = f32(part) * scale * 1.5707963267948966;
        let signed = select(tiny, -tiny, negative != (x < 0.0));
        return Reduced32(signed, select(quadrant, 0u - quadrant, x < 0.0));
    }
    let part = select((high << zeros) | (rest >> ((32u - zeros) & 31u)), high, zeros == 0u);
    let scale = bitcast<f32>((95u - zeros) << 23u);
    let r = f32(part) * scale * 1.5707963267948966;
    let signed = select(r, -r, negative != (x < 0.0));
    return Reduced32(signed, select(quadrant, 0u - quadrant, x < 0.0));
}

fn sin_near_f32(r: f32) -> f32 {
    let z = r * r;
    let y = ((-1.9515295891e-4 * z + 8.3321608736e-3) * z - 1.6666654611e-1) * z;
    return y * r + r;
}

fn cos_near_f32(r: f32) -> f32 {
    let z = r * r;
    let y = ((2.443315711809948e-5 * z - 1.388731625493765e-3) * z + 4.166664568298827e-2) * z * z;
    return y - 0.5 * z + 1.0;
}

fn sin_f32(x: f32) -> f32 {
    let reduced = reduce_f32(x);
    let odd = (reduced.quadrant & 1u) == 1u;
    let y = select(sin_near_f32(reduced.r), cos_near_f32(reduced.r), odd);
    // A zero keeps its sign.
    return select(select(y, -y, (reduced.quadrant & 2u) == 2u), x, x == 0.0);
}

fn cos_f32(x: f32) -> f32 {
    let reduced = reduce_f32(x);
    let odd = (reduced.quadrant & 1u) == 1u;
    let y = select(cos_near_f32(reduced.r), sin_near_f32(reduced.r), odd);
    return select(y, -y, ((reduced.quadrant + 1u) & 2u) == 2u);
}

fn tan_f32(x: f32) -> f32 {
    let reduced = reduce_f32(x);
    let r = reduced.r;
    let z = r * r;
    var y = ((((9.38540185543e-3 * z + 3.11992232697e-3) * z + 2.44301354525e-2) * z
        + 5.34112807005e-2) * z + 1.33387994085e-1) * z + 3.33331568548e-1;
    y = y * z * r + r;
    return select(select(y, -1.0 / y, (reduced.quadrant & 1u) == 1u), x, x == 0.0);
}

fn exp_f32(x: f32) -> f32 {
    if is_nan_f32(x) {
        return x;
    }
    let bounded = clamp(x, -150.0, 100.0);
    let n = round(bounded * 1.4426950408889634);
    let r = bounded - n * 0.693359375 + n * 2.12194440e-4;
    var y = ((((1.9875691500e-4 * r + 1.3981999507e-3) * r + 8.3334519073e-3) * r
        + 4.1665795894e-2) * r + 1.6666665459e-1) * r + 5.0000001201e-1;
    y = y * (r * r) + r + 1.0;
    // In two steps, so that neither scale leaves the range.
    let whole = i32(n);
    let half = whole / 2;
    return y * bitcast<f32>(u32(half + 127) << 23u) * bitcast<f32>(u32(whole - half + 127) << 23u);
}

struct Parts32 { m: f32, e: f32 }

// x = (1 + m) * 2^e with m from sqrt(1/2) - 1 to sqrt(2) - 1; x is positive and finite.
fn parts_f32(x: f32) -> Parts32 {
    var bits = bitcast<u32>(x);
    var e = i32(bits >> 23u) - 126;
    if bits < 0x800000u {
        let shift = countLeadingZeros(bits) - 8u;
        bits = bits << shift;
        e = -125 - i32(shift);
    }
    let m = bitcast<f32>((bits & 0x7fffffu) | 0x3f000000u);
    let low = m < 0.70710678118654752440;
    return Parts32(select(m, m + m, low) - 1.0, f32(select(e, e - 1, low)));
}

fn log_poly_f32(x: f32) -> f32 {
    let y = (((((((7.0376836292e-2 * x - 1.1514610310e-1) * x + 1.1676998740e-1) * x
        - 1.2420140846e-1) * x + 1.4249322787e-1) * x - 1.6668057665e-1) * x
        + 2.0000714765e-1) * x - 2.4999993993e-1) * x + 3.3333331174e-1;
    return y * x * (x * x);
}

// What log and log2 give outside the positive finite numbers; `log` there.
fn log_edge_f32(x: f32, log: f32) -> f32 {
    let bits = bitcast<u32>(x);
    if (bits & 0x7fffffffu) == 0u {
        return -inf_f32();
    }
    if bits > 0x7f800000u {
        return nan_f32();
    }
    return select(log, x, bits == 0x7f800000u);
}

fn log_f32(x: f32) -> f32 {
    let parts = parts_f32(x);
    let y = log_poly_f32(parts.m) - 2.12194440e-4 * parts.e - 0.5 * (parts.m * parts.m);
    return log_edge_f32(x, parts.m + y + 0.693359375 * parts.e);
}

fn log2_f32(x: f32) -> f32 {
    let parts = parts_f32(x);
    let y = log_poly_f32(parts.m) - 0.5 * (parts.m * parts.m);
    // log2(e) is 1 + 0.4427: the 1 is added last.
    let z = y * 0.44269504088896340736 + parts.m * 0.44269504088896340736 + y + parts.m;
    return log_edge_f32(x, z + parts.e);
}

fn tanh_f32(x: f32) -> f32 {
    let size = abs(x);
    let z = x * x;
    let series = (((-5.7049887e-3 * z + 2.063909e-2) * z - 5.3739716e-2) * z + 1.3331442e-1) * z
        - 3.333328e-1;
    let near = series * z * x + x;
    let far = 1.0 - 2.0 / (exp_f32(min(size, 10.0) * 2.0) + 1.0);
    let signed = select(far, -far, x < 0.0);
    return select(select(signed, near, size < 0.625), x, is_nan_f32(x) || x == 0.0);
}

// Sums and products of f32 with what rounding lost, which is exact where nothing overflows.
fn two_sum(a: f32, b: f32) -> vec2<f32> {
    let s = a + b;
    let t = s - a;
    return vec2<f32>(s, (a - (s - t)) + (b - t));
}

fn halves_f32(a: f32) -> vec2<f32> {
    let t = a * 4097.0;
    let h = t - (t - a);
    return vec2<f32>(h, a - h);
}

fn two_product(a: f32, b: f32) -> vec2<f32> {
    let p = a * b;
    let x = halves_f32(a);
    let y = halves_f32(b);
    return vec2<f32>(p, ((x.x * y.x - p) + x.x * y.y + x.y * y.x) + x.y * y.y);
}

// log2 of a positive finite number in two parts, to about 30 bits: 2 atanh((m - 1) / (m + 1)).
fn log2_parts_f32(x: f32) -> vec2<f32> {
    let parts = parts_f32(x);
    let d = parts.m;
    let q = two_sum(d, 2.0);
    let s = d / q.x;
    let back = two_product(s, q.x);
    let rest = ((d - back.x) - back.y - s * q.y) / q.x;
    let z = s * s;
    let series = ((((0.18181818 * z + 0.22222222) * z + 0.2857142857) * z + 0.4) * z + 0.6666666667)
        * z;
    let log = two_sum(2.0 * s, s * series + 2.0 * rest);
    // 1 / ln(2) in two parts.
    let wide = two_product(log.x, 1.4426950216);
    let sum = two_sum(parts.e, wide.x);
    let low = sum.y + (wide.y + log.x * 1.9259629911e-8 + log.y * 1.4426950216);
    return two_sum(sum.x, low);
}

// 2^(high + low) for a low part that is small beside 1.
fn exp2_parts_f32(high: f32, low: f32) -> f32 {
    let bounded = clamp(high, -160.0, 140.0);
    let n = round(bounded);
    let r = (bounded - n) + select(low, 0.0, bounded != high);
    let y = ((((((1.525273e-5 * r + 1.540353e-4) * r + 1.333355815e-3) * r + 9.618129108e-3) * r
        + 5.550410866e-2) * r + 2.402265070e-1) * r + 6.931471806e-1) * r + 1.0;
    // In two steps, so that neither scale leaves the range.
    let whole = i32(n);
    let half = whole / 2;
    return y * bitcast<f32>(u32(half + 127) << 23u) * bitcast<f32>(u32(whole - half + 127) << 23u);
}

// Where there is no f64.
fn pow_plain_f32(x: f32, y: f32) -> f32 {
    let size = abs(x);
    let edge = size == 0.0 || is_inf_f32(x) || is_nan_f32(x) || is_inf_f32(y) || is_nan_f32(y);
    // Beyond this every power of what is not 1 is out of range.
    let power = clamp(y, -1.0e12, 1.0e12);
    let log = log2_parts_f32(select(size, 1.0, edge));
    let product = two_product(power, log.x);
    let near = exp2_parts_f32(product.x, product.y + power * log.y);
    let positive = select(near, exp_f32(y * log_f32(size)), edge);
    let whole = floor(y) == y;
    let odd = whole && abs(y) < 16777216.0 && (i32(y) & 1) == 1;
    let signed = select(positive, -positive, odd && bitcast<i32>(x) < 0);
    let real = select(signed, nan_f32(), x < 0.0 && !whole && !is_inf_f32(x));
    return select(real, 1.0, y == 0.0 || x == 1.0 || (x == -1.0 && is_inf_f32(y)));
}

fn pow_f32(x: f32, y: f32) -> f32 {
    return f32(pow_f64(f64(x), f64(y)));
}
