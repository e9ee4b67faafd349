//! An in-memory disk that never fails, for the stores of simulations.

use std::{
    collections::BTreeMap,
    io::{ErrorKind, Result},
    sync::Arc,
};

use parking_lot::{Mutex, MutexGuard};
use store::disk::{Disk, DiskFile};

#[derive(Default)]
pub(crate) struct MemoryDisk(Mutex<BTreeMap<String, MemoryFile>>);

#[derive(Clone, Default)]
struct MemoryFile(Arc<Mutex<Vec<u8>>>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

impl Disk for MemoryDisk {
    fn list(&self) -> Result<Vec<String>> {
        Ok(lock(&self.0).keys().cloned().collect())
    }

    fn open(&self, name: &str) -> Result<Box<dyn DiskFile>> {
        let file = lock(&self.0).get(name).cloned().ok_or(ErrorKind::NotFound)?;
        Ok(Box::new(file))
    }

    fn create(&self, name: &str) -> Result<Box<dyn DiskFile>> {
        let file = MemoryFile::default();
        lock(&self.0).insert(name.to_owned(), file.clone());
        Ok(Box::new(file))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let mut files = lock(&self.0);
        let file = files.remove(from).ok_or(ErrorKind::NotFound)?;
        files.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<()> {
        lock(&self.0).remove(name).map(drop).ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn path(&self, name: &str) -> String {
        format!("(memory)/{name}")
    }
}

impl DiskFile for MemoryFile {
    fn length(&self) -> Result<u64> {
        Ok(lock(&self.0).len() as u64)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let bytes = lock(&self.0);
        let rest = bytes.get(offset as usize..).unwrap_or_default();
        let size = rest.len().min(buffer.len());
        buffer[..size].copy_from_slice(&rest[..size]);
        Ok(size)
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let (mut all, start) = (lock(&self.0), offset as usize);
        let end = start + bytes.len();
        if all.len() < end {
            all.resize(end, 0);
        }
        all[start..end].copy_from_slice(bytes);
        Ok(())
    }

    fn truncate(&mut self, length: u64) -> Result<()> {
        lock(&self.0).truncate(length as usize);
        Ok(())
    }

    fn sync_data(&mut self) -> Result<()> {
        Ok(())
    }
}
