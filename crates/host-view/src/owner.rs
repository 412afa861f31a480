//! Who is charged for what a process has.

use std::fmt;
use std::sync::Arc;

/// A person, a job or a pod, where control groups show it that only root makes; otherwise a user. One
/// person can have any number of user ids (`/etc/subuid`), and pods of many people have the same ones.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// The user with this id.
    User(u32),
    /// Everybody in this control group and in those below it.
    Group(Arc<str>),
    /// Root of containers whose control groups are not known.
    ContainerRoot,
}

impl Owner {
    /// Returns the owner of a process by its user and its `/proc/PID/cgroup`, as far as that is known.
    pub fn of(uid: u32, cgroups: &str) -> Self {
        // Version 2, or the hierarchy of systemd in version 1.
        let paths = cgroups.lines().filter_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            matches!(controllers, "" | "name=systemd").then_some(path)
        });
        paths.filter_map(Self::of_path).next().unwrap_or(Self::User(uid))
    }

    /// Returns the owner of a control group. The names count at the top alone: below the groups that are
    /// given to them, users make groups with any name.
    fn of_path(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.strip_prefix('/')?.split('/').collect();
        let group = |len: usize| Some(Self::Group(format!("/{}", parts[..len].join("/")).into()));
        match &parts[..] {
            // systemd-logind: all sessions of a person.
            ["user.slice", slice, ..] => {
                let uid = slice.strip_prefix("user-")?.strip_suffix(".slice")?;
                uid.parse().ok().map(Self::User)
            }
            // Slurm: a job.
            ["system.slice", scope, job, ..] if scope.ends_with("slurmstepd.scope") => {
                job.starts_with("job_").then(|| group(3)).flatten()
            }
            // Docker, and what podman or cri-o runs for root: a container.
            ["system.slice", scope, ..] if scope.starts_with("docker-") => group(2),
            ["machine.slice", scope, ..] if scope.ends_with(".scope") => group(2),
            // Kubernetes: a pod, as systemd or the kubelet names it, below the class of its service.
            ["kubepods" | "kubepods.slice", rest @ ..] => {
                let is_pod = |part: &&str| part.starts_with("pod") || part.contains("-pod");
                rest.iter().take(2).position(is_pod).and_then(|at| group(at + 2))
            }
            _ => None,
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(uid) => write!(f, "user {uid}"),
            Self::Group(path) => write!(f, "control group {path}"),
            Self::ContainerRoot => write!(f, "root of a container"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(path: &str) -> Owner {
        Owner::Group(path.into())
    }

    //= agent.md: all that one person, job or pod has counts together
    #[test]
    fn a_process_belongs_to_the_person_the_job_or_the_pod_of_its_control_group() {
        let of = |cgroups: &str| Owner::of(100_007, cgroups);
        for person in [
            "0::/user.slice/user-1000.slice/session-3.scope\n",
            "0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-1f.scope/container\n",
            "4:memory:/x\n1:name=systemd:/user.slice/user-1000.slice/session-3.scope\n0::/\n",
        ] {
            assert_eq!(of(person), Owner::User(1000), "{person}");
        }
        for (cgroups, path) in [
            ("0::/system.slice/slurmstepd.scope/job_17/step_0/user/task_3\n", 3),
            ("0::/system.slice/node7_slurmstepd.scope/job_17\n", 3),
            ("0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1f.slice/cri-2.scope\n", 3),
            ("0::/kubepods.slice/kubepods-pod1f.slice/cri-2.scope\n", 2),
            ("0::/kubepods/besteffort/pod1f/2\n", 3),
            ("0::/system.slice/docker-1f.scope\n", 2),
            ("0::/machine.slice/libpod-1f.scope/container\n", 2),
        ] {
            let parts: Vec<&str> = cgroups.trim_start_matches("0::/").trim_end().split('/').collect();
            assert_eq!(of(cgroups), group(&format!("/{}", parts[..path].join("/"))));
        }
    }

    #[test]
    fn what_a_user_could_have_named_does_not_count() {
        for cgroups in [
            "",
            "nonsense",
            "0::/",
            "0::/../../user.slice/user-1000.slice",
            "0::/system.slice/ssh.service",
            "0::/system.slice/x.service/slurmstepd.scope/job_1",
            "0::/user.slice/user-.slice/session-1.scope",
            "0::/user.slice/user-x.slice",
            "0::/machine.slice/user.slice/user-1000.slice",
            "0::/kubepods.slice/kubepods-burstable.slice/cri-2.scope/pod1",
            "1:cpu:/user.slice/user-1000.slice",
        ] {
            assert_eq!(Owner::of(7, cgroups), Owner::User(7), "{cgroups}");
        }
        let own = "0::/user.slice/user-1000.slice/user@1000.service/user.slice/user-1001.slice";
        assert_eq!(Owner::of(7, own), Owner::User(1000));
        assert_eq!(Owner::User(7).to_string(), "user 7");
        assert_eq!(group("/a/b").to_string(), "control group /a/b");
    }
}
