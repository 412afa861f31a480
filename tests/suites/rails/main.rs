//! Devices and rails: which there are, and what each carries.

mod devices;
mod many_rails;
mod pci;
mod speeds;
mod striping;
mod two_rails;
mod vdevices;
