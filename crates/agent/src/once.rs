//! One look at the host without serving anybody.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::thread;
use std::time::Instant;

use mpib_host_view::Owner;
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
        for page in pages_of(pid).unwrap_or_default() {
            if let Ok(id) = agent.connect(Peer { pid, uid, owner: Owner::User(uid) }) {
                observers.push((id, page, Observer::default()));
            }
        }
    }
    let mut observe = || {
        for (id, page, observer) in &mut observers {
            let (seen, elapsed) = observer.read(page, Instant::now());
            agent.observe(*id, &seen, elapsed);
        }
    };
    // The goodput is that between two readings.
    observe();
    thread::sleep(interval);
    observe();
    Ok(agent.snapshot())
}
