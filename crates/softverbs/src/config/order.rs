//! In which order the data of WRITEs becomes visible in the memory of a device's process.

use std::sync::OnceLock;

use super::{DeviceSpec, of_all};

/// Name of the environment variable with the order of devices that name none.
pub const ORDER_VAR: &str = "SOFTVERBS_ORDER";

/// When and in which order the data of WRITEs becomes visible in memory.
///
/// A completion of a receive always comes after its data and after all that was written over its
/// queue pair before. The two later orders keep nothing else that the verbs do not promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u32)]
pub enum Order {
    /// Data is visible before any completion of its WRITE.
    Strict,
    /// Data becomes visible up to a millisecond later, in the order of its queue pair, or when the
    /// completion of a receive of its queue pair is polled that follows it.
    Late,
    /// As `Late`, but in any order: also within a WRITE, and among the WRITEs of a queue pair.
    Relaxed,
}

/// In the order of [`Order`].
const NAMES: [(&str, Order); 3] =
    [("strict", Order::Strict), ("late", Order::Late), ("relaxed", Order::Relaxed)];

impl Order {
    /// Parses a value of the key `order`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let found = NAMES.iter().find(|(name, _)| *name == text);
        found
            .map(|(_, order)| *order)
            .ok_or_else(|| format!("found {text:?}, expected strict, late or relaxed"))
    }

    /// Returns the order of a number in shared memory; `Strict` for an unknown one.
    pub(crate) fn at(number: u32) -> Self {
        NAMES.get(number as usize).map_or(Self::Strict, |(_, order)| *order)
    }
}

/// Returns the order of devices that name none, or the line to log if the variable is invalid.
pub(super) fn default() -> Result<Order, &'static str> {
    static DEFAULT: OnceLock<Result<Order, String>> = OnceLock::new();
    of_all(&DEFAULT, ORDER_VAR, Order::Strict, Order::parse)
}

/// Returns the order of a device.
pub(crate) fn of(spec: &DeviceSpec) -> Order {
    spec.order.or(default().ok()).unwrap_or(Order::Strict)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_order_is_found_by_its_name_and_its_number() {
        for (number, (name, order)) in (0..).zip(NAMES) {
            assert_eq!((Order::parse(name), order as u32, Order::at(number)), (Ok(order), number, order));
        }
        assert_eq!(Order::at(u32::MAX), Order::Strict);
        let error = Order::parse("weak").expect_err("no order");
        assert_eq!(error, "found \"weak\", expected strict, late or relaxed");
    }
}
