// The functions of 64-bit types; see library.wgsl.

fn inf_f64() -> f64 {
    var bits = 0x7ff0000000000000lu;
    return bitcast<f64>(bits);
}

fn nan_f64() -> f64 {
    var bits = 0x7ff8000000000000lu;
    return bitcast<f64>(bits);
}

fn is_nan_f64(x: f64) -> bool {
    return (bitcast<u64>(x) & 0x7ffffffffffffffflu) > 0x7ff0000000000000lu;
}

fn is_inf_f64(x: f64) -> bool {
    return (bitcast<u64>(x) & 0x7ffffffffffffffflu) == 0x7ff0000000000000lu;
}

fn min_f64(a: f64, b: f64) -> f64 {
    return select(select(b, a, a < b), a, is_nan_f64(b));
}

fn max_f64(a: f64, b: f64) -> f64 {
    return select(select(b, a, a > b), a, is_nan_f64(b));
}

fn zeros_u64(x: u64) -> u32 {
    let high = u32(x >> 32u);
    return select(countLeadingZeros(high), 32u + countLeadingZeros(u32(x & 0xfffffffflu)), high == 0u);
}

fn rem_f64(x: f64, y: f64) -> f64 {
    let sign = bitcast<u64>(x) & 0x8000000000000000lu;
    let a = bitcast<u64>(x) & 0x7ffffffffffffffflu;
    let b = bitcast<u64>(y) & 0x7ffffffffffffffflu;
    if b == 0lu || a >= 0x7ff0000000000000lu || b > 0x7ff0000000000000lu {
        return nan_f64();
    }
    if a < b {
        return x;
    }
    if a == b {
        return bitcast<f64>(sign);
    }
    var ex = i32(u32(a >> 52u));
    var ey = i32(u32(b >> 52u));
    var mx = (a & 0xffffffffffffflu) | 0x10000000000000lu;
    var my = (b & 0xffffffffffffflu) | 0x10000000000000lu;
    if ex == 0 {
        let shift = zeros_u64(a) - 11u;
        mx = a << shift;
        ex = 1 - i32(shift);
    }
    if ey == 0 {
        let shift = zeros_u64(b) - 11u;
        my = b << shift;
        ey = 1 - i32(shift);
    }
    while ex > ey {
        mx = select(mx, mx - my, mx >= my) << 1u;
        ex -= 1;
    }
    mx = select(mx, mx - my, mx >= my);
    if mx == 0lu {
        return bitcast<f64>(sign);
    }
    let shift = zeros_u64(mx) - 11u;
    mx = mx << shift;
    ex -= i32(shift);
    if ex > 0 {
        return bitcast<f64>(sign | (mx & 0xffffffffffffflu) | (u64(u32(ex)) << 52u));
    }
    return bitcast<f64>(sign | (mx >> u32(1 - ex)));
}

struct Reduced64 { r: f64, quadrant: u32 }

fn reduce_f64(x: f64) -> Reduced64 {
    if abs(x) < 1.0e6lf {
        let n = round(x * 0.63661977236758134308lf);
        var r = x - n * 1.5707963267341256lf;
        r = r - n * 6.077100506303966e-11lf;
        r = r - n * 2.0222662487111665e-21lf;
        r = r - n * 8.4784276603689e-32lf;
        return Reduced64(r, bitcast<u32>(i32(n)));
    }
    return reduce_large_f64(x);
}

fn reduce_large_f64(x: f64) -> Reduced64 {
    let bits = bitcast<u64>(x);
    let e = i32(u32(bits >> 52u) & 2047u) - 1075;
    if e > 971 {
        return Reduced64(nan_f64(), 0u);
    }
    let m = (bits & 0xffffffffffffflu) | 0x10000000000000lu;
    let m_low = m & 0xfffffffflu;
    let m_high = m >> 32u;
    // 192 bits, the last word first, times the mantissa, modulo 2^192.
    var p = array<u32, 6>(0u, 0u, 0u, 0u, 0u, 0u);
    var carry = 0lu;
    var before = 0lu;
    for (var i = 0; i < 6; i += 1) {
        let word = u64(two_over_pi_at(e - 2 + 32 * (5 - i)));
        let low = word * m_low;
        let high = before * m_high;
        let sum = (low & 0xfffffffflu) + (high & 0xfffffffflu) + (carry & 0xfffffffflu);
        p[i] = u32(sum & 0xfffffffflu);
        carry = (low >> 32u) + (high >> 32u) + (carry >> 32u) + (sum >> 32u);
        before = word;
    }
    let top = (u64(p[5]) << 32u) | u64(p[4]);
    let mid = (u64(p[3]) << 32u) | u64(p[2]);
    let low = (u64(p[1]) << 32u) | u64(p[0]);
    var quadrant = u32(top >> 62u);
    var high = (top << 2u) | (mid >> 62u);
    var rest = (mid << 2u) | (low >> 62u);
    let negative = high >= 0x8000000000000000lu;
    if negative {
        quadrant += 1u;
        high = ~high + select(0lu, 1lu, rest == 0lu);
        rest = ~rest + 1lu;
    }
    let zeros = min(zeros_u64(high), 63u);
    let part = select((high << zeros) | (rest >> (64u - zeros)), high, zeros == 0u);
    let scale = bitcast<f64>(u64(959u - zeros) << 52u);
    let r = f64(part) * scale * 1.57079632679489661923lf;
    let signed = select(r, -r, negative != (x < 0.0lf));
    return Reduced64(signed, select(quadrant, 0u - quadrant, x < 0.0lf));
}

fn sin_near_f64(r: f64) -> f64 {
    let z = r * r;
    let y = ((((1.58969099521155010221e-10lf * z - 2.50507602534068634195e-08lf) * z
        + 2.75573137070700676789e-06lf) * z - 1.98412698298579493134e-04lf) * z
        + 8.33333333332248946124e-03lf) * z - 1.66666666666666324348e-01lf;
    return y * z * r + r;
}

fn cos_near_f64(r: f64) -> f64 {
    let z = r * r;
    let y = ((((-1.13596475577881948265e-11lf * z + 2.08757232129817482790e-09lf) * z
        - 2.75573143513906633035e-07lf) * z + 2.48015872894767294178e-05lf) * z
        - 1.38888888888741095749e-03lf) * z + 4.16666666666666019037e-02lf;
    let half = 0.5lf * z;
    let w = 1.0lf - half;
    return w + (((1.0lf - w) - half) + z * z * y);
}

fn sin_f64(x: f64) -> f64 {
    let reduced = reduce_f64(x);
    let odd = (reduced.quadrant & 1u) == 1u;
    let y = select(sin_near_f64(reduced.r), cos_near_f64(reduced.r), odd);
    return select(select(y, -y, (reduced.quadrant & 2u) == 2u), x, x == 0.0lf);
}

fn cos_f64(x: f64) -> f64 {
    let reduced = reduce_f64(x);
    let odd = (reduced.quadrant & 1u) == 1u;
    let y = select(cos_near_f64(reduced.r), sin_near_f64(reduced.r), odd);
    return select(y, -y, ((reduced.quadrant + 1u) & 2u) == 2u);
}

fn tan_f64(x: f64) -> f64 {
    let reduced = reduce_f64(x);
    let sine = sin_near_f64(reduced.r);
    let cosine = cos_near_f64(reduced.r);
    let y = select(sine / cosine, -(cosine / sine), (reduced.quadrant & 1u) == 1u);
    return select(y, x, x == 0.0lf);
}

// exp(x + low), where low is small beside x.
fn exp_sum_f64(x: f64, low: f64) -> f64 {
    if is_nan_f64(x) {
        return x;
    }
    let bounded = min(max(x, -760.0lf), 720.0lf);
    let n = round(bounded * 1.44269504088896338700lf);
    let high = bounded - n * 6.93147180369123816490e-01lf;
    let rest = n * 1.90821492927058770002e-10lf - low;
    let r = high - rest;
    let t = r * r;
    let c = r - t * ((((4.13813679705723846039e-08lf * t - 1.65339022054652515390e-06lf) * t
        + 6.61375632143793436117e-05lf) * t - 2.77777777770155933842e-03lf) * t
        + 1.66666666666666019037e-01lf);
    let y = 1.0lf - ((rest - (r * c) / (2.0lf - c)) - high);
    let whole = i32(n);
    let half = whole / 2;
    return y * bitcast<f64>(u64(u32(half + 1023)) << 52u)
        * bitcast<f64>(u64(u32(whole - half + 1023)) << 52u);
}

fn exp_f64(x: f64) -> f64 {
    return exp_sum_f64(x, 0.0lf);
}

struct Parts64 { m: f64, e: f64 }

fn parts_f64(x: f64) -> Parts64 {
    var bits = bitcast<u64>(x);
    var e = i32(u32(bits >> 52u)) - 1022;
    if bits < 0x10000000000000lu {
        let shift = zeros_u64(bits) - 11u;
        bits = bits << shift;
        e = -1021 - i32(shift);
    }
    let m = bitcast<f64>((bits & 0xffffffffffffflu) | 0x3fe0000000000000lu);
    let low = m < 0.70710678118654752440lf;
    return Parts64(select(m, m + m, low) - 1.0lf, f64(select(e, e - 1, low)));
}

fn log_edge_f64(x: f64, log: f64) -> f64 {
    let bits = bitcast<u64>(x);
    if (bits & 0x7ffffffffffffffflu) == 0lu {
        return -inf_f64();
    }
    if bits > 0x7ff0000000000000lu {
        return nan_f64();
    }
    return select(log, x, bits == 0x7ff0000000000000lu);
}

// log(1 + f) - 2s, over s, where s = f / (2 + f) and z = s * s.
fn log_poly_f64(z: f64) -> f64 {
    return z * (6.666666666666735130e-01lf + z * (3.999999999940941908e-01lf
        + z * (2.857142874366239149e-01lf + z * (2.222219843214978396e-01lf
        + z * (1.818357216161805012e-01lf + z * (1.531383769920937332e-01lf
        + z * 1.479819860511658591e-01lf))))));
}

fn log_f64(x: f64) -> f64 {
    let parts = parts_f64(x);
    let f = parts.m;
    let s = f / (2.0lf + f);
    let half = 0.5lf * f * f;
    let r = log_poly_f64(s * s);
    let low = s * (half + r) + parts.e * 1.90821492927058770002e-10lf;
    return log_edge_f64(x, parts.e * 6.93147180369123816490e-01lf - ((half - low) - f));
}

fn log2_f64(x: f64) -> f64 {
    let log = log_wide_f64(x);
    // 1 / ln 2 in two parts.
    let product = mul_exact_f64(log.high, 1.44269504088896338700lf);
    let low = product.low + log.low * 1.44269504088896338700lf + log.high * 2.0355273740931033e-17lf;
    return log_edge_f64(x, product.high + low);
}

fn tanh_f64(x: f64) -> f64 {
    let size = abs(x);
    let z = x * x;
    let above = (-9.64399179425052238628e-1lf * z - 9.92877231001918586564e1lf) * z
        - 1.61468768441708447952e3lf;
    let below = ((z + 1.12811678491632931402e2lf) * z + 2.23548839060100448583e3lf) * z
        + 4.84406305325125486048e3lf;
    let near = above / below * z * x + x;
    let far = 1.0lf - 2.0lf / (exp_f64(min(size, 22.0lf) * 2.0lf) + 1.0lf);
    let signed = select(far, -far, x < 0.0lf);
    return select(select(signed, near, size < 0.625lf), x, is_nan_f64(x) || x == 0.0lf);
}

struct Wide64 { high: f64, low: f64 }

// The product and what it lost (Dekker, 1971).
fn mul_exact_f64(a: f64, b: f64) -> Wide64 {
    let p = a * b;
    let ca = a * 134217729.0lf;
    let cb = b * 134217729.0lf;
    let ah = ca - (ca - a);
    let bh = cb - (cb - b);
    let al = a - ah;
    let bl = b - bh;
    return Wide64(p, ((ah * bh - p) + ah * bl + al * bh) + al * bl);
}

fn sum_exact_f64(a: f64, b: f64) -> Wide64 {
    let s = a + b;
    let t = s - a;
    return Wide64(s, (a - (s - t)) + (b - t));
}

// log(x) to some 65 bits, for positive finite x.
fn log_wide_f64(x: f64) -> Wide64 {
    let parts = parts_f64(x);
    let f = parts.m;
    let base = sum_exact_f64(2.0lf, f);
    let s = f / base.high;
    let back = mul_exact_f64(s, base.high);
    let s_low = (((f - back.high) - back.low) - s * base.low) / base.high;
    let rest = s * log_poly_f64(s * s);
    let first = mul_exact_f64(parts.e, 6.93147180369123816490e-01lf);
    let sum = sum_exact_f64(first.high, 2.0lf * s);
    let low = sum.low + (2.0lf * s_low + rest + parts.e * 1.90821492927058770002e-10lf);
    return sum_exact_f64(sum.high, low);
}

fn pow_f64(x: f64, y: f64) -> f64 {
    if y == 0.0lf || x == 1.0lf {
        return 1.0lf;
    }
    if is_nan_f64(x) || is_nan_f64(y) {
        return nan_f64();
    }
    let size = abs(x);
    let whole = floor(y) == y;
    let half = y * 0.5lf;
    let odd = whole && abs(y) < 9007199254740992.0lf && floor(half) != half;
    let negative = odd && (bitcast<u64>(x) >> 63u) == 1lu;
    var result = inf_f64();
    if is_inf_f64(y) {
        result = select(select(0.0lf, inf_f64(), (size > 1.0lf) == (y > 0.0lf)), 1.0lf, size == 1.0lf);
    } else if size == 0.0lf || is_inf_f64(size) {
        result = select(0.0lf, inf_f64(), (size == 0.0lf) == (y < 0.0lf));
    } else {
        if x < 0.0lf && !whole {
            return nan_f64();
        }
        let log = log_wide_f64(size);
        // Beyond this exp is 0 or infinite whatever the low part is.
        let bounded = min(max(y, -1.0e19lf), 1.0e19lf);
        let product = mul_exact_f64(log.high, bounded);
        let clipped = min(max(product.high, -800.0lf), 800.0lf);
        let low = select(0.0lf, product.low + log.low * bounded, clipped == product.high);
        result = exp_sum_f64(clipped, low);
    }
    return select(result, -result, negative);
}
