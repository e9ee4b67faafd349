//! The known servers and the choice among them. Pure.

/// The result of one check of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    Ready,
    /// The server answers that it is not ready, because it is starting or stopping.
    Unready,
    Silent,
}

/// The state of a server after several checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Health {
    Ready,
    Unready,
    Silent,
}

struct Server {
    address: String,
    health: Health,
    /// The number of consecutive silent checks.
    silences: u32,
    /// `true` if the cluster's last list contains the server.
    listed: bool,
}

/// The number of silent checks after which a server counts as silent; a single answer may get lost.
const SILENCES: u32 = 3;
/// The number of servers kept after the cluster no longer lists them, as a last resort.
const FORMER: usize = 8;

#[derive(Default)]
pub(crate) struct Pool {
    servers: Vec<Server>,
    next: usize,
}

impl Pool {
    pub(crate) fn new(addresses: &[String]) -> Self {
        let mut pool = Self::default();
        pool.update(addresses);
        pool
    }

    /// Applies the cluster's list, and returns `true` if it changed the servers.
    pub(crate) fn update(&mut self, listed: &[String]) -> bool {
        let before = self.addresses();
        for server in &mut self.servers {
            server.listed = listed.contains(&server.address);
        }
        for address in listed {
            if !self.servers.iter().any(|s| s.address == *address) {
                let (address, health) = (address.clone(), Health::Ready);
                self.servers.push(Server { address, health, silences: 0, listed: true });
            }
        }
        // Listed servers first, each group in its order.
        self.servers.sort_by_key(|s| !s.listed);
        let listed = self.servers.iter().filter(|s| s.listed).count();
        self.servers.truncate(listed + FORMER);
        self.addresses() != before
    }

    /// Applies a check, and returns the new state of the server if it changed.
    pub(crate) fn report(&mut self, address: &str, finding: Finding) -> Option<Health> {
        let server = self.servers.iter_mut().find(|s| s.address == address)?;
        server.silences = if finding == Finding::Silent { server.silences + 1 } else { 0 };
        let health = match finding {
            Finding::Ready => Health::Ready,
            Finding::Unready => Health::Unready,
            Finding::Silent if server.silences >= SILENCES => Health::Silent,
            // Prefer other servers until the state is certain.
            Finding::Silent => server.health.max(Health::Unready),
        };
        let changed = server.health != health;
        server.health = health;
        changed.then_some(health)
    }

    /// Returns all servers in the order of attempts: ready ones in turn, then the others as a last resort.
    pub(crate) fn candidates(&mut self) -> Vec<String> {
        self.next = self.next.wrapping_add(1);
        let mut all: Vec<&Server> = self.servers.iter().collect();
        if !all.is_empty() {
            let by = self.next % all.len();
            all.rotate_left(by);
        }
        all.sort_by_key(|s| (s.health, !s.listed));
        all.into_iter().map(|s| s.address.clone()).collect()
    }

    pub(crate) fn addresses(&self) -> Vec<String> {
        self.servers.iter().map(|s| s.address.clone()).collect()
    }

    pub(crate) fn is_silent(&self, address: &str) -> bool {
        self.servers.iter().any(|s| s.address == address && s.health == Health::Silent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(names: &[&str]) -> Vec<String> {
        names.iter().map(|n| (*n).to_owned()).collect()
    }

    #[test]
    fn rotates_ready_servers() {
        let mut pool = Pool::new(&texts(&["a", "b", "c"]));
        let mut firsts: Vec<String> = (0..3).map(|_| pool.candidates().remove(0)).collect();
        firsts.sort();
        assert_eq!(firsts, ["a", "b", "c"]);
        assert_eq!(pool.report("b", Finding::Unready), Some(Health::Unready));
        for _ in 0..6 {
            let candidates = pool.candidates();
            assert_eq!((candidates.len(), candidates[2].as_str()), (3, "b"));
        }
    }

    #[test]
    fn single_lost_answer_is_not_silence() {
        let mut pool = Pool::new(&texts(&["a", "b"]));
        pool.report("a", Finding::Silent);
        assert!(!pool.is_silent("a"));
        assert_eq!(pool.candidates()[0], "b", "the other server is preferred meanwhile");
        pool.report("a", Finding::Silent);
        assert_eq!(pool.report("a", Finding::Silent), Some(Health::Silent));
        assert!(pool.is_silent("a") && !pool.is_silent("b"));
        assert_eq!(pool.report("a", Finding::Ready), Some(Health::Ready));
        // Connection attempts and checks both report, so silent results must be counted from zero.
        pool.report("a", Finding::Silent);
        assert!(!pool.is_silent("a"));
    }

    #[test]
    fn keeps_limited_number_of_former_servers() {
        let mut pool = Pool::new(&texts(&["a", "b"]));
        assert!(pool.update(&texts(&["b", "c"])));
        assert_eq!(pool.addresses(), ["b", "c", "a"]);
        assert!(!pool.update(&texts(&["b", "c"])));
        for _ in 0..5 {
            assert_eq!(pool.candidates()[2], "a");
        }
        for n in 0..50 {
            pool.update(&texts(&[&format!("n{n}")]));
        }
        assert_eq!(pool.addresses().len(), 1 + FORMER);
        assert_eq!(pool.addresses()[0], "n49");
    }
}
