//! The variables by which users and hosts configure a job, and what stands in their place in a
//! process that must depend on neither: a demonstration, a measurement, a test.

/// Without effect unless it is set: `mpib` reads neither `/etc/nccl.conf` nor `.nccl.conf` in the
/// user's home, only the file in `NCCL_CONF_FILE`.
pub const NO_HOST_NCCL_CONF: &str = "NO_HOST_NCCL_CONF";

/// The path of an agent's socket where no agent is.
pub const NO_AGENT: &str = "/nonexistent/agent.sock";

/// The path of a file of learnt routes in a folder that does not exist: there is none.
pub const NO_REACH_FILE: &str = "/nonexistent/reach";

/// The variables of a process that uses nothing of its host: no agent, nothing that other processes
/// have learnt, and none of the configuration files that NCCL looks for.
pub const WITHOUT_HOST: [(&str, &str); 3] =
    [("MPIB_AGENT_SOCKET", NO_AGENT), ("MPIB_REACH_FILE", NO_REACH_FILE), (NO_HOST_NCCL_CONF, "1")];

/// Returns a value without its quotes, if it begins or ends with one. A shell removes quotes; `docker
/// --env-file`, compose files and NCCL's configuration files keep them.
pub fn unquoted(value: &str) -> Option<String> {
    const QUOTES: [char; 2] = ['"', '\''];
    (value.starts_with(QUOTES) || value.ends_with(QUOTES)).then(|| value.replace(QUOTES, ""))
}

/// Whether a variable is a setting of NCCL, RCCL, the plugin, its tools or softverbs.
pub fn is_setting(name: &str) -> bool {
    ["MPIB_", "NCCL_", "RCCL_", "SOFTVERBS_"].iter().any(|prefix| name.starts_with(prefix))
}
