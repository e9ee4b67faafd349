//! Runs the iptables programs. They are the only interface common to both variants of iptables (legacy and nftables).

use std::{
    collections::BTreeMap,
    process::{Command, Output, Stdio},
};

use net_core::{
    Family,
    xtables::{self, Chains, InstalledTable, STATE_CHAIN},
};

use crate::{
    error::{Error, XtablesError},
    iptables, nft,
    table::WriteStats,
};

/// The source of iptables chains: the programs, or a fake.
pub trait Xtables: Send + Sync {
    /// Returns the output of `iptables-save` for a table.
    fn save(&self, family: Family, table: &str) -> Result<String, Error>;
    /// Reports whether a chain exists.
    fn has_chain(&self, family: Family, table: &str, chain: &str) -> Result<bool, Error>;
    /// Passes `input` to `iptables-restore`. Each table in it is one transaction.
    fn restore(&self, family: Family, input: &str) -> Result<(), Error>;
}

/// The iptables programs of this machine.
#[derive(Clone, Copy, Debug)]
pub struct Iptables {
    /// The variant in the programs' names: empty or `-legacy`.
    kind: &'static str,
}

impl Iptables {
    /// Returns the programs that the administrator has selected, if installed.
    pub fn find() -> Option<Self> {
        let found = Self { kind: "" };
        found.is_installed().then_some(found)
    }

    /// Returns the programs for the kernel's legacy tables.
    fn legacy() -> Self {
        let named = Self { kind: "-legacy" };
        if named.is_installed() { named } else { Self { kind: "" } }
    }

    fn is_installed(self) -> bool {
        let program = self.program(Family::V4, "-restore");
        nft::find(&program).is_absolute()
    }

    fn program(self, family: Family, verb: &str) -> String {
        let tables = if family == Family::V4 { "iptables" } else { "ip6tables" };
        format!("{tables}{}{verb}", self.kind)
    }
}

fn ended(program: String, output: std::io::Result<Output>) -> Result<Output, Error> {
    let output =
        output.map_err(|source| XtablesError::Start { program: program.clone(), source })?;
    if output.status.success() {
        return Ok(output);
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(XtablesError::Refused { program, message }.into())
}

/// Wait for the lock of iptables, which others hold for a moment.
const WAIT: [&str; 2] = ["--wait", "5"];

impl Xtables for Iptables {
    fn save(&self, family: Family, table: &str) -> Result<String, Error> {
        let program = self.program(family, "-save");
        let mut command = Command::new(nft::find(&program));
        let output = command.args(["-t", table]).stdin(Stdio::null()).output();
        let output = ended(program, output)?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn has_chain(&self, family: Family, table: &str, chain: &str) -> Result<bool, Error> {
        let program = self.program(family, "");
        let mut command = Command::new(nft::find(&program));
        let output = command.args(WAIT).args(["-t", table, "-S", chain, "1"]).output();
        // Exit code 1 means that the chain does not exist; others are errors.
        if output.as_ref().is_ok_and(|output| output.status.code() == Some(1)) {
            return Ok(false);
        }
        ended(program, output).map(|_| true)
    }

    fn restore(&self, family: Family, input: &str) -> Result<(), Error> {
        let program = self.program(family, "-restore");
        let mut command = Command::new(nft::find(&program));
        let output = nft::feed(command.arg("--noflush").args(WAIT), input);
        ended(program, output).map(drop)
    }
}

/// Keeps the chains of one family up to date, like [`crate::TableWriter`] does for a table.
#[derive(Default)]
pub struct ChainWriter {
    installed: Option<Chains>,
}

impl ChainWriter {
    /// Writes the chains. `new` must be sealed. Chains that are not `needed` are updated if they exist, but not
    /// created.
    pub fn write(
        &mut self,
        kernel: &dyn Xtables,
        new: Chains,
        needed: bool,
    ) -> Result<WriteStats, Error> {
        if let Some(old) = &self.installed {
            let (input, operations) = xtables::restore(old, &new);
            if input.is_empty() {
                return Ok(WriteStats::default());
            }
            match kernel.restore(new.family, &input) {
                Ok(()) => {
                    self.installed = Some(new);
                    return Ok(WriteStats { transactions: 1, operations });
                }
                Err(error) => {
                    tracing::warn!(
                        %error,
                        family = new.family.nft(),
                        "another program has changed the chains; reading them"
                    );
                    self.installed = None;
                }
            }
        }
        let found = look(kernel, &new)?;
        if new.is_installed(&found) {
            self.installed = Some(new);
            return Ok(WriteStats::default());
        }
        if !needed && !xtables::is_there(&found) {
            return Ok(WriteStats::default());
        }
        let (input, operations) = xtables::resync(&found, &new);
        kernel.restore(new.family, &input)?;
        self.installed = Some(new);
        Ok(WriteStats { transactions: 1, operations })
    }

    /// Checks whether another program has removed the chains (reloading a firewall flushes everything), so that the
    /// next write creates them again. Returns `true` if they are intact.
    pub fn check(&mut self, kernel: &dyn Xtables) -> Result<bool, Error> {
        let Some(chains) = &self.installed else { return Ok(true) };
        let mut intact = true;
        for table in chains.tables() {
            intact &= kernel.has_chain(chains.family, table, STATE_CHAIN)?;
        }
        if intact {
            return Ok(true);
        }
        tracing::warn!(
            family = chains.family.nft(),
            "another program has removed chains of Services; writing them again"
        );
        self.installed = None;
        Ok(false)
    }
}

fn look(
    kernel: &dyn Xtables,
    of: &Chains,
) -> Result<BTreeMap<&'static str, InstalledTable>, Error> {
    let each = |table| Ok((table, InstalledTable::parse(&kernel.save(of.family, table)?)));
    of.tables().map(each).collect()
}

/// Removes chains from the kernel's legacy tables, which nft does not show, with the rules that refer to them. Only
/// tables in use are read, because reading a table would create it.
pub(crate) fn remove_legacy(is_stale: &dyn Fn(&str) -> bool) -> Result<usize, Error> {
    let mut count = 0;
    for family in Family::ALL {
        let names = if family == Family::V4 { "ip_tables_names" } else { "ip6_tables_names" };
        let used = std::fs::read_to_string(format!("/proc/thread-self/net/{names}"));
        let used = used.unwrap_or_default();
        let mut input = String::new();
        for table in used.lines().filter(|table| iptables::TABLES.contains(table)) {
            let found = InstalledTable::parse(&Iptables::legacy().save(family, table)?);
            let (chains, part) = xtables::removal(table, &found, is_stale);
            count += chains;
            input.push_str(&part);
        }
        if !input.is_empty() {
            Iptables::legacy().restore(family, &input)?;
        }
    }
    Ok(count)
}
