//! One look at the host without serving anybody.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::thread;
use std::time::Instant;

use nccl_net_mpib_agent_iface::stats::{pages_of, processes};

use crate::config::Config;
use crate::kept::Kept;
use crate::observe::{Observer, READINGS};
use crate::state::{Agent, Peer, Snapshot};

/// Looks at all processes that use the plugin and that this user may see, for one interval of the
/// configuration. Returns what an agent would know of them and decide. Opens no socket.
///
/// # Errors
/// `/proc` cannot be read.
pub fn look_once(config: Config, kept: Kept) -> io::Result<Snapshot> {
    let reading = config.interval() / READINGS;
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
    // The first reading is an observation, and so are the last five together.
    for _ in 0..=READINGS {
        for (id, observer) in &mut observers {
            if let Some((seen, elapsed)) = observer.read(Instant::now()) {
                agent.observe(*id, &seen, elapsed);
            }
        }
        thread::sleep(reading);
    }
    Ok(agent.snapshot())
}
