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

/// Returns the name that the scheduler of a cluster has for this job: the number of Slurm, PBS, LSF or
/// Flux, or the name of the pod in Kubernetes, which is the name of its host.
pub fn job_of_scheduler(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    const NUMBERS: [&str; 4] = ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID"];
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    let pod = || set("KUBERNETES_SERVICE_HOST").and_then(|_| set("HOSTNAME"));
    NUMBERS.into_iter().find_map(set).or_else(pod)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_job_is_that_of_the_scheduler() {
        let job = |variables: &[(&str, &str)]| {
            let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
            job_of_scheduler(|name| find(name).map(|(_, value)| (*value).to_owned()))
        };
        assert_eq!(job(&[("HOSTNAME", "node1")]), None, "a host that is no pod");
        let pod = [("HOSTNAME", "run-worker-0"), ("KUBERNETES_SERVICE_HOST", "10.0.0.1")];
        assert_eq!(job(&pod).as_deref(), Some("run-worker-0"));
        let both = [pod[0], pod[1], ("SLURM_JOB_ID", ""), ("PBS_JOBID", "12.pbs")];
        assert_eq!(job(&both).as_deref(), Some("12.pbs"), "an empty variable is none");
    }
}
