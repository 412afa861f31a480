//! What a program of nccl-tests prints: a row for each size, and at the end the number of results with
//! wrong values.

/// The sizes whose bandwidth counts: smaller ones measure NCCL's own steps.
const LARGE: u64 = 64 << 20;
/// The end of a row, for results out of place and then in place: time, algbw, busbw, wrong values.
const COLUMNS: usize = 8;
/// Places of both bandwidths of the bus there.
const BUSBW: [usize; 2] = [2, 6];

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Table {
    /// Mean bandwidth of the bus for large sizes, in GB/s.
    pub(super) busbw: f64,
    /// Results with wrong values.
    pub(super) wrong: u64,
}

impl Table {
    /// Reads an output. It has to have large sizes and the number of wrong results.
    pub(super) fn parse(output: &str) -> Option<Self> {
        let rates: Vec<f64> = output.lines().filter_map(row).flatten().collect();
        let wrong = output.lines().find_map(|line| {
            let words = line.trim_start_matches(['#', ' ']).strip_prefix("Out of bounds values")?;
            words.trim_start_matches([':', ' ']).split_whitespace().next()?.parse().ok()
        })?;
        let busbw = rates.iter().sum::<f64>() / rates.len() as f64;
        (busbw > 0.0).then_some(Self { busbw, wrong })
    }
}

/// Returns the bandwidths of a row for a large size.
fn row(line: &str) -> Option<[f64; 2]> {
    let words: Vec<&str> = line.split_whitespace().collect();
    if words.first()?.parse::<u64>().ok()? < LARGE {
        return None;
    }
    let results = words.split_at_checked(words.len().checked_sub(COLUMNS)?)?.1;
    let [out, within] =
        BUSBW.map(|place| results[place].parse::<f64>().ok().filter(|rate| rate.is_finite() && *rate >= 0.0));
    Some([out?, within?])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As nccl-tests 2.17 print it, in fewer rows.
    const ALL_REDUCE: &str = "\
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid 202829 on      node1 device  0 [0009:01:00] NVIDIA H100
#  Rank  1 Group  0 Pid 154517 on      node2 device  0 [0009:01:00] NVIDIA H100
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
           8             2     float     sum      -1    18.54    0.00    0.00       0    18.31    0.00    0.00       0
    67108864      16777216     float     sum      -1   1490.5   45.02   45.02       0   1483.5   45.24   45.24       0
   134217728      33554432     float     sum      -1   2916.4   46.02   46.02       0   2907.8   46.16   46.16       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 19.7866
#
";
    /// The results of an exchange in place are not checked.
    const ALLTOALL: &str = "\
           8             2     float    none      -1    18.54    0.00    0.00       0    18.31    0.00    0.00     N/A
    67108864       1048576     float    none      -1  44747.1    1.50    1.40       0  69049.0    0.97    1.00     N/A
# Out of bounds values : 2 FAILED
# Avg bus bandwidth    : 9.04853
";

    #[test]
    fn large_sizes_and_wrong_results_are_read() {
        let all_reduce = Table::parse(ALL_REDUCE).unwrap();
        assert!((all_reduce.busbw - 45.61).abs() < 1e-9 && all_reduce.wrong == 0, "{all_reduce:?}");
        let alltoall = Table::parse(ALLTOALL).unwrap();
        assert!((alltoall.busbw - 1.2).abs() < 1e-9 && alltoall.wrong == 2, "{alltoall:?}");
    }

    #[test]
    fn an_output_without_its_parts_is_no_table() {
        assert_eq!(Table::parse(""), None);
        assert_eq!(Table::parse(&ALL_REDUCE.replace("Out of bounds", "x")), None);
        assert_eq!(Table::parse(&ALL_REDUCE.replace("bounds values : 0", "bounds values : many")), None);
        let short: Vec<_> = ALL_REDUCE
            .lines()
            .filter(|line| !line.contains(" 16777216 ") && !line.contains(" 33554432 "))
            .collect();
        assert_eq!(Table::parse(&short.join("\n")), None);
        assert_eq!(Table::parse("67108864 1\n# Out of bounds values : 0 OK"), None);
    }
}
