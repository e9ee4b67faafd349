use net_core::nft::{self, Table, Transaction};

use crate::{Error, Net};

/// Keeps one nftables table as it should be, by the smallest transaction.
///
/// It remembers what it installed, so that a change costs only what differs. After a start, or when the kernel
/// refused a transaction, it looks at what is there: an equal digest means that nothing is to be done, anything
/// else is brought over in place, keeping dynamic sets; only when that is refused too is the table made anew.
/// None of these touches established connections: the kernel tracks them apart from the rules.
#[derive(Default)]
pub struct TableWriter {
    installed: Option<Table>,
}

/// What writing took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    pub transactions: usize,
    pub operations: usize,
}

impl TableWriter {
    /// `new` is sealed. A table that is not `needed` is still kept up where it exists, but not made.
    pub fn write(&mut self, net: &dyn Net, new: Table, needed: bool) -> Result<Written, Error> {
        let mut written = Written::default();
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
                    tracing::warn!(%error, table = new.name, family = new.family.nft(), "the table is not as it was left; looking at it");
                    self.installed = None;
                }
            }
        }
        match net.table(new.family, &new.name)? {
            // There is nothing to write, and perhaps no kernel support either.
            None if !needed => return Ok(written),
            Some(found) if found.digest.as_deref() == new.digest() => {}
            Some(found) => {
                if let Err(error) = commit(net, &nft::resync(&found, &new), &mut written) {
                    tracing::warn!(%error, table = new.name, family = new.family.nft(), "making the table anew");
                    commit(net, &nft::create(&new), &mut written)?;
                }
            }
            None => commit(net, &nft::create(&new), &mut written)?,
        }
        self.installed = Some(new);
        Ok(written)
    }

    /// Notices that someone else removed the table (a firewall's reload flushes everything), so that the next
    /// write makes it again. Returns whether it was as it was left.
    pub fn check(&mut self, net: &dyn Net) -> Result<bool, Error> {
        let Some(table) = &self.installed else { return Ok(true) };
        if net.has_table(table.family, &table.name)? {
            return Ok(true);
        }
        tracing::warn!(
            table = table.name,
            family = table.family.nft(),
            "someone removed the table; writing it again"
        );
        self.installed = None;
        Ok(false)
    }
}

fn commit(
    net: &dyn Net,
    transaction: &Transaction<'_>,
    written: &mut Written,
) -> Result<(), Error> {
    net.nft(&transaction.to_string())?;
    written.transactions += 1;
    written.operations += transaction.ops.len();
    Ok(())
}
