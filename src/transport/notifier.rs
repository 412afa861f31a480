//! What the control connection of a comm reports without being polled.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::async_events::CommWatch;
use crate::control::{ChannelEvent, News};

/// Makes calls on a comm look closer when its control connection has news.
#[derive(Debug)]
pub(crate) struct Notifier {
    watch: Arc<CommWatch>,
    /// A new TCP connection has replaced a broken one: what was sent last may be lost.
    resumed: AtomicBool,
}

impl Notifier {
    pub(crate) fn new(watch: Arc<CommWatch>) -> Arc<Self> {
        Arc::new(Self { watch, resumed: AtomicBool::new(false) })
    }

    /// Returns whether the last messages must be repeated, once for each new TCP connection.
    pub(crate) fn take_resumed(&self) -> bool {
        self.resumed.swap(false, Ordering::AcqRel)
    }
}

impl News for Notifier {
    fn on_news(&self, event: ChannelEvent) {
        if event == ChannelEvent::Resumed {
            self.resumed.store(true, Ordering::Release);
        }
        match event {
            // It is for NCCL's next call. Housekeeping finds it at its next tick, if it has to.
            ChannelEvent::Ended => self.watch.mark(),
            _ => self.watch.notify(),
        }
    }
}
