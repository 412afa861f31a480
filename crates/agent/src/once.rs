//! One look at the host without serving anybody.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::thread;
use std::time::Instant;

use nccl_net_mpib_agent_iface::stats::{pages_of, processes};

use crate::config::Config;
use crate::kept::Kept;
use crate::observe::Observer;
use crate::state::{Agent, Peer, Snapshot};

/// Looks at all processes that use the plugin and that this user may see, for one interval of the
/// configuration. Returns what an agent would know of them and decide. Opens no socket.
///
/// # Errors
/// `/proc` cannot be read.
pub fn look_once(config: Config, kept: Kept) -> io::Result<Snapshot> {
    let interval = config.interval();
    let mut agent = Agent::new(config, None, kept);
    let mut observers = Vec::new();
    for pid in processes()? {
        // Most processes have no page. One may end at any time.
        let Ok(uid) = std::fs::metadata(format!("/proc/{pid}")).map(|meta| meta.uid()) else { continue };
        if pages_of(pid).is_ok()
            && let Ok(id) = agent.connect(Peer { pid, uid })
        {
            observers.push((id, Observer::new(pid)));
        }
    }
    let mut observe = || {
        for (id, observer) in &mut observers {
            if let Some((seen, elapsed)) = observer.read(Instant::now()) {
                agent.observe(*id, &seen, elapsed);
            }
        }
    };
    // The goodput is that between two readings.
    observe();
    thread::sleep(interval);
    observe();
    Ok(agent.snapshot())
}
