//! An in-memory disk that never fails, for the stores of simulations.

use std::{
    collections::BTreeMap,
    io::{ErrorKind, Result},
    sync::Arc,
};

use parking_lot::Mutex;
use store::disk::{Disk, DiskFile};

#[derive(Default)]
pub(crate) struct MemoryDisk(Mutex<BTreeMap<String, MemoryFile>>);

#[derive(Clone, Default)]
struct MemoryFile(Arc<Mutex<Vec<u8>>>);

impl Disk for MemoryDisk {
    fn list(&self) -> Result<Vec<String>> {
        Ok(self.0.lock().keys().cloned().collect())
    }

    fn open(&self, name: &str) -> Result<Box<dyn DiskFile>> {
        let file = self.0.lock().get(name).cloned().ok_or(ErrorKind::NotFound)?;
        Ok(Box::new(file))
    }

    fn create(&self, name: &str) -> Result<Box<dyn DiskFile>> {
        let file = MemoryFile::default();
        self.0.lock().insert(name.to_owned(), file.clone());
        Ok(Box::new(file))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let mut files = self.0.lock();
        let file = files.remove(from).ok_or(ErrorKind::NotFound)?;
        files.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.0.lock().remove(name).map(drop).ok_or_else(|| ErrorKind::NotFound.into())
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
        Ok(self.0.lock().len() as u64)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let bytes = self.0.lock();
        let rest = bytes.get(offset as usize..).unwrap_or_default();
        let size = rest.len().min(buffer.len());
        buffer[..size].copy_from_slice(&rest[..size]);
        Ok(size)
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let (mut all, start) = (self.0.lock(), offset as usize);
        let end = start + bytes.len();
        if all.len() < end {
            all.resize(end, 0);
        }
        all[start..end].copy_from_slice(bytes);
        Ok(())
    }

    fn truncate(&mut self, length: u64) -> Result<()> {
        self.0.lock().truncate(length as usize);
        Ok(())
    }

    fn sync_data(&mut self) -> Result<()> {
        Ok(())
    }
}
