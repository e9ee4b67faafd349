use nix::sys::{
    signal::{SigSet, Signal},
    wait::{WaitPidFlag, WaitStatus, waitpid},
};

/// Does what a sandbox's first process has to: keeps the namespaces alive, buries orphans, and ends when told to.
pub fn pause() -> std::io::Result<()> {
    let mut wanted = SigSet::empty();
    wanted.add(Signal::SIGINT);
    wanted.add(Signal::SIGTERM);
    wanted.add(Signal::SIGCHLD);
    wanted.thread_block()?;
    loop {
        match wanted.wait()? {
            Signal::SIGCHLD => {
                while matches!(waitpid(None, Some(WaitPidFlag::WNOHANG)), Ok(status) if status != WaitStatus::StillAlive)
                {
                }
            }
            _ => return Ok(()),
        }
    }
}
