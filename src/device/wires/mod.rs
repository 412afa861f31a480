//! Which ports of RDMA devices are one physical port and share its wire, and by which GUID, number
//! and speed NCCL learns that. Facts in, wires out: no I/O.
//!
//! NCCL takes devices with equal GUID and port for one wire: what a channel uses of one of them
//! counts against all (seen in `src/graph/search.cc` of NCCL 2.30). So all functions of a wire have
//! one pair, with the speed of the whole wire, and each wire has a pair to itself.
//!
//! A port whose facts do not suffice has a wire to itself. NCCL may then plan more than the wire
//! carries, up to what the PCIe links of the functions carry. The other mistake costs more: of cards
//! that count as one, NCCL leaves all but one idle.

mod sysfs;
#[cfg(test)]
mod tests;

/// What is known of a port of an RDMA device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Function {
    /// sysfs path of the PCI function: of the physical one, for virtual functions and for
    /// subfunctions. `None`: not on PCI.
    physical: Option<String>,
    /// Port number in the RDMA device.
    number: u8,
    /// GUID of the system image. Most adapters have one for each chip, some one for each function,
    /// and hfi1 one for all cards of a host.
    image: u64,
    /// GUID of the RDMA device.
    node: u64,
    interface: Interface,
    /// Mb/s by which the plugin counts it, and that it reports: `MPIB_RAIL_SPEED` changes the first.
    speed: u32,
    reported: u32,
}

/// What the kernel shows of the network interface of the physical function. Each attribute depends
/// on the driver, and a container may not see the interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Interface {
    /// `phys_port_id`: equal for all functions of one port.
    port_id: Option<String>,
    /// `phys_port_name`, as in `p0`: unique in a chip.
    port_name: Option<String>,
    /// `phys_switch_id`: equal for all ports of a chip.
    switch_id: Option<String>,
}

/// A physical port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wire {
    /// Functions of one wire have the same index.
    pub(crate) index: usize,
    /// The pair by which NCCL knows the wire.
    pub(crate) guid: u64,
    pub(crate) port: u16,
    /// Mb/s of all its functions together.
    pub(crate) speed: u32,
}

/// Returns the wire of each function.
pub(super) fn wires(functions: &[Function]) -> Vec<Wire> {
    let groups = groups(functions);
    // Each with its first function.
    let mut wires: Vec<(Wire, &Function)> = Vec::new();
    let mut indices = vec![0; functions.len()];
    for (place, first) in functions.iter().enumerate() {
        if groups[place] != place {
            indices[place] = indices[groups[place]];
            continue;
        }
        let (guid, port) = pair(first, &wires);
        let members = functions.iter().zip(&groups).filter(|(_, group)| **group == place);
        let speed = speed(members.map(|(function, _)| function));
        indices[place] = wires.len();
        wires.push((Wire { index: wires.len(), guid, port, speed }, first));
    }
    indices.into_iter().map(|index| wires[index].0).collect()
}

/// Returns a pair of GUID and port that no wire has. Ports of one card have one GUID and a number
/// each, cards have a GUID each: NCCL 2.32 makes a plane of each port number, and joins no planes.
fn pair(first: &Function, wires: &[(Wire, &Function)]) -> (u64, u16) {
    let of_card =
        |guid: &u64| wires.iter().all(|(wire, other)| wire.guid != *guid || is_one_card(first, other));
    let guids = [first.image, first.node].into_iter().chain((1..).map(|n| first.image.wrapping_add(n)));
    let guid = guids.into_iter().find(of_card).unwrap_or(first.image);
    let is_free = |port: &u16| !wires.iter().any(|(wire, _)| (wire.guid, wire.port) == (guid, *port));
    (guid, (u16::from(first.number)..).find(is_free).unwrap_or(u16::MAX))
}

/// Returns the speed of a wire. Each function reports the whole of it; the operator may have given
/// each its part.
fn speed<'a>(functions: impl Iterator<Item = &'a Function> + Clone) -> u32 {
    let sum = functions.clone().map(|function| function.speed).fold(0, u32::saturating_add);
    let most = functions.map(|function| function.speed.max(function.reported)).max().unwrap_or(0);
    sum.min(most)
}

/// Returns the place of the first function that shares each function's wire.
fn groups(functions: &[Function]) -> Vec<usize> {
    let mut groups: Vec<usize> = (0..functions.len()).collect();
    for (place, function) in functions.iter().enumerate() {
        for before in 0..place {
            if share(function, &functions[before]) {
                let (a, b) = (groups[place], groups[before]);
                groups.iter_mut().filter(|group| **group == a.max(b)).for_each(|group| *group = a.min(b));
            }
        }
    }
    groups
}

/// Whether two functions are known to share a wire.
fn share(one: &Function, other: &Function) -> bool {
    if one.physical.is_some() && (&one.physical, one.number) == (&other.physical, other.number) {
        return true;
    }
    let (ours, theirs) = (&one.interface, &other.interface);
    if ours.port_id.is_some() && theirs.port_id.is_some() {
        return ours.port_id == theirs.port_id;
    }
    // A chip may have several PCIe links, with functions on each.
    is_one_chip(one, other) && ours.port_name == theirs.port_name
}

/// Whether two functions are known to be of one chip, which names its ports.
fn is_one_chip(one: &Function, other: &Function) -> bool {
    let (ours, theirs) = (&one.interface, &other.interface);
    let same = match (&ours.switch_id, &theirs.switch_id) {
        (Some(ours), Some(theirs)) => ours == theirs,
        _ => one.image != 0 && one.image == other.image,
    };
    same && ours.port_name.is_some() && theirs.port_name.is_some()
}

/// Whether two functions are known to be of one card: a slot's bus has one card.
fn is_one_card(one: &Function, other: &Function) -> bool {
    let bus = |function: &Function| Some(function.physical.as_ref()?.rsplit_once(':')?.0.to_owned());
    (bus(one).is_some() && bus(one) == bus(other)) || is_one_chip(one, other)
}
