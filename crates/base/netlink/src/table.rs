//! Updates of an nftables table.

use net_core::nft::{self, Table, Transaction};

use crate::{error::Error, net::Net};

/// Keeps one nftables table up to date with minimal transactions.
///
/// The writer remembers what it installed, so that a change costs only the difference. After a start, or after a failed
/// transaction, it reads the existing table. If the digest is equal, nothing is written. Otherwise the table is updated
/// in place, which keeps dynamic sets; if that fails, too, the table is created again. Established connections are not
/// affected, because the kernel tracks them independently of the rules.
#[derive(Default)]
pub struct TableWriter {
    installed: Option<Table>,
}

/// The cost of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteStats {
    /// The number of transactions.
    pub transactions: usize,
    /// The number of operations in them.
    pub operations: usize,
}

impl TableWriter {
    /// Writes the table. `new` must be sealed. A table that is not `needed` is updated if it exists, but not created.
    pub fn write(&mut self, net: &dyn Net, new: Table, needed: bool) -> Result<WriteStats, Error> {
        let mut written = WriteStats::default();
        if let Some(old) = &self.installed {
            let transaction = nft::diff(old, &new);
            if transaction.is_empty() {
                return Ok(written);
            }
            match commit(net, &transaction, &mut written) {
                Ok(()) => {
                    self.installed = Some(new);
                    return Ok(written);
                }
                Err(error) => {
                    tracing::warn!(
                        %error,
                        table = new.name,
                        family = new.family.nft(),
                        "another program has changed the table; reading it"
                    );
                    self.installed = None;
                }
            }
        }
        match net.table(new.family, &new.name)? {
            // Nothing to write, and the kernel may lack support for nftables.
            None if !needed => return Ok(written),
            Some(found) if found.digest.as_deref() == new.digest() => {}
            Some(found) => {
                if let Err(error) = commit(net, &nft::resync(&found, &new), &mut written) {
                    tracing::warn!(
                        %error,
                        table = new.name,
                        family = new.family.nft(),
                        "failed to update the table in place; creating it again"
                    );
                    commit(net, &nft::create(&new), &mut written)?;
                }
            }
            None => commit(net, &nft::create(&new), &mut written)?,
        }
        self.installed = Some(new);
        Ok(written)
    }

    /// Checks whether another program has removed the table (reloading a firewall flushes everything), so that the next
    /// write creates it again. Returns `true` if it is intact.
    pub fn check(&mut self, net: &dyn Net) -> Result<bool, Error> {
        let Some(table) = &self.installed else { return Ok(true) };
        if net.has_table(table.family, &table.name)? {
            return Ok(true);
        }
        tracing::warn!(
            table = table.name,
            family = table.family.nft(),
            "another program has removed the table; writing it again"
        );
        self.installed = None;
        Ok(false)
    }
}

fn commit(
    net: &dyn Net,
    transaction: &Transaction<'_>,
    written: &mut WriteStats,
) -> Result<(), Error> {
    net.nft(&transaction.to_string())?;
    written.transactions += 1;
    written.operations += transaction.ops.len();
    Ok(())
}
