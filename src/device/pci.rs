//! PCI addresses of adapters. Pure.

/// Domain, bus, device and function, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Address {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl Address {
    /// Parses the last part of a device's path in sysfs, as in `0000:17:00.1`.
    pub(super) fn of(path: &str) -> Option<Self> {
        let (_, last) = path.rsplit_once('/')?;
        let (domain, rest) = last.split_once(':')?;
        let (bus, rest) = rest.split_once(':')?;
        let (device, function) = rest.split_once('.')?;
        Some(Self {
            domain: hex(domain)?,
            bus: hex(bus)?.try_into().ok()?,
            device: hex(device)?.try_into().ok()?,
            function: hex(function)?.try_into().ok()?,
        })
    }

    /// Whether both are functions of one card: a slot's bus has one card, whose virtual functions
    /// have other device numbers.
    pub(super) fn is_of_card(&self, other: &Self) -> bool {
        (self.domain, self.bus) == (other.domain, other.bus)
    }
}

fn hex(digits: &str) -> Option<u32> {
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
    plain.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(last: &str) -> Option<Address> {
        Address::of(&format!("/sys/devices/pci0000:16/0000:16:02.0/{last}"))
    }

    #[test]
    fn addresses_are_in_the_order_of_their_numbers() {
        let sorted =
            ["0000:05:00.0", "0000:17:00.0", "0000:17:00.1", "0000:17:01.0", "0000:b1:00.0", "10000:01:00.0"];
        let sorted: Vec<_> = sorted.into_iter().map(|text| at(text).unwrap()).collect();
        assert!(sorted.is_sorted() && sorted.windows(2).all(|w| w[0] != w[1]));
    }

    #[test]
    fn a_card_is_a_bus() {
        let one = at("0000:17:00.0").unwrap();
        for (other, same) in
            [("0000:17:00.1", true), ("0000:17:02.3", true), ("0000:18:00.0", false), ("0001:17:00.0", false)]
        {
            assert_eq!(one.is_of_card(&at(other).unwrap()), same, "{other}");
        }
    }

    #[test]
    fn what_is_no_address_has_none() {
        for last in [
            "",
            "virtio3",
            "0000:17:00",
            "0000:17",
            "0000:17:00.",
            "0000:1g:00.0",
            "0000:+7:00.0",
            "0000:117:00.0",
        ] {
            assert_eq!(at(last), None, "{last}");
        }
        assert_eq!(Address::of("0000:17:00.0"), None, "no path");
    }
}
