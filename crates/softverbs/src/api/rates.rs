//! `enum ibv_rate` in numbers: `ibv_rate_to_mult(3)`, `ibv_rate_to_mbps(3)` and their inverses.

use core::ffi::c_int;

/// `enum ibv_rate`, multiples of 2.5 Gb/s (where the rate is one), Mb/s on the wire.
const RATES: [(c_int, Option<c_int>, c_int); 23] = [
    (2, Some(1), 2_500),
    (5, Some(2), 5_000),
    (3, Some(4), 10_000),
    (6, Some(8), 20_000),
    (4, Some(12), 30_000),
    (7, Some(16), 40_000),
    (8, Some(24), 60_000),
    (9, Some(32), 80_000),
    (10, Some(48), 120_000),
    (11, None, 14_062),
    (12, None, 56_250),
    (13, None, 112_500),
    (14, None, 168_750),
    (15, None, 25_781),
    (16, None, 103_125),
    (17, None, 206_250),
    (18, None, 309_375),
    (19, Some(11), 28_125),
    (20, Some(20), 53_125),
    (21, Some(160), 425_000),
    (22, Some(240), 637_500),
    (23, Some(320), 850_000),
    (24, Some(480), 1_275_000),
];
/// `IBV_RATE_MAX`, the answer for a number that no rate has.
const MAX: c_int = 0;

/// `ibv_rate_to_mult`: -1 for a rate that is no multiple.
#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mult(rate: c_int) -> c_int {
    RATES.iter().find(|r| r.0 == rate).and_then(|r| r.1).unwrap_or(-1)
}

/// `mult_to_ibv_rate`
#[unsafe(no_mangle)]
extern "C" fn mult_to_ibv_rate(mult: c_int) -> c_int {
    RATES.iter().find(|r| r.1 == Some(mult)).map_or(MAX, |r| r.0)
}

/// `ibv_rate_to_mbps`: -1 for an unknown rate.
#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mbps(rate: c_int) -> c_int {
    RATES.iter().find(|r| r.0 == rate).map_or(-1, |r| r.2)
}

/// `mbps_to_ibv_rate`
#[unsafe(no_mangle)]
extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
    RATES.iter().find(|r| r.2 == mbps).map_or(MAX, |r| r.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_are_inverse() {
        for (rate, mult, mbps) in RATES {
            assert_eq!(ibv_rate_to_mbps(rate), mbps);
            assert_eq!(mbps_to_ibv_rate(mbps), rate);
            if let Some(mult) = mult {
                assert_eq!((ibv_rate_to_mult(rate), mult_to_ibv_rate(mult)), (mult, rate));
            }
        }
        assert_eq!((ibv_rate_to_mult(12), ibv_rate_to_mbps(99), mbps_to_ibv_rate(1)), (-1, -1, 0));
    }
}
