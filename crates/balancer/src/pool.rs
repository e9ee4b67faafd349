//! Which servers there are and which of them to use. Pure.

/// What was seen of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    Ready,
    /// It answers, and says that it is not ready: it starts or stops.
    Unready,
    Silent,
}

/// How a server stands after several findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Standing {
    Ready,
    Unready,
    Silent,
}

struct Server {
    address: String,
    standing: Standing,
    /// How often in a row it was silent.
    silences: u32,
    /// The cluster's last list has it.
    listed: bool,
}

/// A server is taken for silent after so many silent findings: one may be lost on the way.
const SILENCES: u32 = 3;
/// Servers that the cluster no longer lists are kept, for they may be all that is left one day; but not many.
const FORMER: usize = 8;

#[derive(Default)]
pub(crate) struct Pool {
    servers: Vec<Server>,
    next: usize,
}

impl Pool {
    pub(crate) fn new(addresses: &[String]) -> Self {
        let mut pool = Self::default();
        pool.learn(addresses);
        pool
    }

    /// Takes the cluster's own list; whether it has anything new.
    pub(crate) fn learn(&mut self, listed: &[String]) -> bool {
        let before = self.addresses();
        for server in &mut self.servers {
            server.listed = listed.contains(&server.address);
        }
        for address in listed {
            if !self.servers.iter().any(|s| s.address == *address) {
                let (address, standing) = (address.clone(), Standing::Ready);
                self.servers.push(Server { address, standing, silences: 0, listed: true });
            }
        }
        // The listed ones first, each part in its order.
        self.servers.sort_by_key(|s| !s.listed);
        let listed = self.servers.iter().filter(|s| s.listed).count();
        self.servers.truncate(listed + FORMER);
        self.addresses() != before
    }

    /// How a server stands now, if that changed.
    pub(crate) fn report(&mut self, address: &str, finding: Finding) -> Option<Standing> {
        let server = self.servers.iter_mut().find(|s| s.address == address)?;
        server.silences = if finding == Finding::Silent { server.silences + 1 } else { 0 };
        let standing = match finding {
            Finding::Ready => Standing::Ready,
            Finding::Unready => Standing::Unready,
            Finding::Silent if server.silences >= SILENCES => Standing::Silent,
            // Others go first until it is clear.
            Finding::Silent => server.standing.max(Standing::Unready),
        };
        let changed = server.standing != standing;
        server.standing = standing;
        changed.then_some(standing)
    }

    /// All servers in the order in which to try them: those that are ready in turn, the others as a last resort.
    pub(crate) fn candidates(&mut self) -> Vec<String> {
        self.next = self.next.wrapping_add(1);
        let mut all: Vec<&Server> = self.servers.iter().collect();
        if !all.is_empty() {
            let by = self.next % all.len();
            all.rotate_left(by);
        }
        all.sort_by_key(|s| (s.standing, !s.listed));
        all.into_iter().map(|s| s.address.clone()).collect()
    }

    pub(crate) fn addresses(&self) -> Vec<String> {
        self.servers.iter().map(|s| s.address.clone()).collect()
    }

    pub(crate) fn is_silent(&self, address: &str) -> bool {
        self.servers.iter().any(|s| s.address == address && s.standing == Standing::Silent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(names: &[&str]) -> Vec<String> {
        names.iter().map(|n| (*n).to_owned()).collect()
    }

    #[test]
    fn ready_servers_take_turns() {
        let mut pool = Pool::new(&texts(&["a", "b", "c"]));
        let mut firsts: Vec<String> = (0..3).map(|_| pool.candidates().remove(0)).collect();
        firsts.sort();
        assert_eq!(firsts, ["a", "b", "c"]);
        assert_eq!(pool.report("b", Finding::Unready), Some(Standing::Unready));
        for _ in 0..6 {
            let candidates = pool.candidates();
            assert_eq!((candidates.len(), candidates[2].as_str()), (3, "b"));
        }
    }

    #[test]
    fn one_lost_answer_is_not_silence() {
        let mut pool = Pool::new(&texts(&["a", "b"]));
        pool.report("a", Finding::Silent);
        assert!(!pool.is_silent("a"));
        assert_eq!(pool.candidates()[0], "b", "the other goes first while it is in doubt");
        pool.report("a", Finding::Silent);
        assert_eq!(pool.report("a", Finding::Silent), Some(Standing::Silent));
        assert!(pool.is_silent("a") && !pool.is_silent("b"));
        assert_eq!(pool.report("a", Finding::Ready), Some(Standing::Ready));
        // Dialling and checking both report: silence counts from anew.
        pool.report("a", Finding::Silent);
        assert!(!pool.is_silent("a"));
    }

    #[test]
    fn former_servers_are_kept_behind_and_in_bounds() {
        let mut pool = Pool::new(&texts(&["a", "b"]));
        assert!(pool.learn(&texts(&["b", "c"])));
        assert_eq!(pool.addresses(), ["b", "c", "a"]);
        assert!(!pool.learn(&texts(&["b", "c"])));
        for _ in 0..5 {
            assert_eq!(pool.candidates()[2], "a");
        }
        for n in 0..50 {
            pool.learn(&texts(&[&format!("n{n}")]));
        }
        assert_eq!(pool.addresses().len(), 1 + FORMER);
        assert_eq!(pool.addresses()[0], "n49");
    }
}
