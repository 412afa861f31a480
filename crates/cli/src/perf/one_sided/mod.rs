//! A run of one-sided traffic through an RMA table: the calls of NCCL's host RMA and of its progress
//! thread, with each end as a rank of a group of two.

mod group;
mod traffic;
mod windows;

use std::ptr::null_mut;

use nccl_net_host::{Call, Error, Ptr, Rma, logger};

use super::{
    measure,
    session::{Listener, Session},
};
use crate::device::Device;
use crate::failure::Failure;
pub(super) use group::Group;
pub(super) use windows::Windows;

/// A worker with an RMA table.
pub(super) struct OneSided<'a> {
    rma: Rma,
    init: Ptr,
    session: Session<'a>,
}

impl<'a> OneSided<'a> {
    pub(super) fn init(rma: Rma, session: Session<'a>) -> Result<Self, Error> {
        let mut init = null_mut();
        // The number of a communicator: any does.
        rma.init(&raw mut init, 1, logger::callback()).check(Call::Init)?;
        Ok(Self { rma, init, session })
    }

    /// Runs everything between `init` and `finalize`, and that. A failure leaves all objects open:
    /// the process ends.
    pub(super) fn run(mut self, listener: &mut dyn Listener) -> Result<(), Failure> {
        let device = self.choose_device()?;
        listener.device(&self.rma.name().unwrap_or_else(|| "(NULL)".into()), &device)?;
        self.session.exchange(device)?;
        let group = Group::connect(self.rma, self.init, &mut self.session)?;
        for size in self.session.plan.sizes.clone() {
            let result = measure::one_sided(&mut self.session, &group, size)?;
            listener.result(&result)?;
        }
        group.close()?;
        Ok(self.rma.finalize(self.init).check(Call::Finalize)?)
    }

    fn choose_device(&mut self) -> Result<Device, Failure> {
        let mut count = 0;
        self.rma.devices(&raw mut count).check(Call::Devices)?;
        let number = self.session.device;
        self.session.numbered("--device", number, count)?;
        let (code, properties) = self.rma.properties(number);
        code.check(Call::GetProperties)?;
        let named = properties.filter(|properties| properties.name.is_some());
        let nameless = Error::Null { call: Call::GetProperties, what: "name" };
        self.session.take(named.ok_or(nameless)?)
    }
}
