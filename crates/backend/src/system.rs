//! What the operating system says of memory (rule C.1): available, not free; the cgroup's limit
//! if it is lower. And of who calls at a local socket.

#[cfg(target_vendor = "apple")]
mod apple;

use std::fs;
use std::os::unix::net::UnixStream;

use crate::seam::Budget;

/// Elsewhere Apple's calls are not.
#[cfg(not(target_vendor = "apple"))]
mod apple {
    pub(super) fn budget() -> Option<crate::seam::Budget> {
        None
    }

    pub(super) fn processor() -> Option<String> {
        None
    }

    /// The user at the other end of a socket, as Linux has it.
    pub(super) fn peer(stream: &std::os::unix::net::UnixStream) -> Option<u32> {
        let peer = rustix::net::sockopt::socket_peercred(stream).ok()?;
        Some(peer.uid.as_raw())
    }
}

/// Whether the other end of a local socket is this process's own user.
pub fn is_own_user(stream: &UnixStream) -> bool {
    apple::peer(stream) == Some(rustix::process::geteuid().as_raw())
}

/// Bytes of a `Name:  123 kB` line of a `/proc` file.
fn proc_field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Limit and use of this process's control group; `None` where there is no limit.
fn cgroup() -> Option<(u64, u64)> {
    let read = |path: String| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mut best: Option<(u64, u64)> = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let (root, limit, used) = if controllers.is_empty() {
            ("/sys/fs/cgroup", "memory.max", "memory.current")
        } else if controllers.split(',').any(|name| name == "memory") {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
        } else {
            continue;
        };
        // A limit of any group above binds too.
        let mut path = path.trim_end_matches('/');
        loop {
            if let Some(limit) = read(format!("{root}{path}/{limit}")) {
                let used = read(format!("{root}{path}/{used}")).unwrap_or(0);
                if best.is_none_or(|known| limit < known.0) {
                    best = Some((limit, used));
                }
            }
            match path.rfind('/') {
                Some(cut) => path = &path[..cut],
                None => break,
            }
        }
    }
    best
}

/// Memory now. Where the system says nothing, 4 GiB of 8.
pub(crate) fn budget() -> Budget {
    if let Some(budget) = apple::budget() {
        return budget;
    }
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let mut total = proc_field(&info, "MemTotal").unwrap_or(8 << 30);
    let mut available = proc_field(&info, "MemAvailable").unwrap_or(total / 2);
    if let Some((limit, used)) = cgroup() {
        total = total.min(limit);
        available = available.min(limit.saturating_sub(used));
    }
    Budget { working_set: available.min(total), total }
}

/// The processor's name.
pub(crate) fn processor() -> String {
    if let Some(name) = apple::processor() {
        return name;
    }
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| {
        line.strip_prefix("model name")?.trim_start().strip_prefix(':').map(str::trim)
    });
    name.unwrap_or(std::env::consts::ARCH).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C.1: the working set is what is available, and never above all there is.
    #[test]
    fn the_budget_is_what_is_available() {
        let budget = budget();
        assert!(0 < budget.working_set && budget.working_set <= budget.total);
    }

    #[test]
    fn fields_are_read_by_their_whole_name() {
        let text = "MemTotal:  10 kB\nMemFree: 1 kB\nMemAvailable:   7 kB\n";
        assert_eq!(proc_field(text, "MemAvailable"), Some(7168));
        assert_eq!(proc_field(text, "Mem"), None);
    }
}
