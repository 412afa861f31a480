//! Objects by their index in a table of the segment.

use std::sync::{Arc, PoisonError, RwLock};

use crate::abi::border::Errno;

/// See the module.
pub(crate) struct Table<T> {
    slots: RwLock<Vec<Slot<T>>>,
    max: u32,
}

enum Slot<T> {
    Free,
    Reserved,
    Used(Arc<T>),
}

impl<T> Slot<T> {
    const fn object(&self) -> Option<&Arc<T>> {
        match self {
            Self::Used(object) => Some(object),
            Self::Free | Self::Reserved => None,
        }
    }
}

impl<T> Table<T> {
    pub(crate) fn new(max: u32) -> Self {
        Self { slots: RwLock::default(), max }
    }

    /// Counts the indices that are not free.
    pub(crate) fn used(&self) -> usize {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        slots.iter().filter(|slot| !matches!(slot, Slot::Free)).count()
    }

    /// Reserves a free index for an object under construction.
    pub(crate) fn reserve(&self) -> Result<u32, Errno> {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let index = match slots.iter().position(|slot| matches!(slot, Slot::Free)) {
            Some(index) => index,
            None if slots.len() < self.max as usize => {
                slots.push(Slot::Free);
                slots.len() - 1
            }
            None => return Err(Errno(libc::ENOMEM)),
        };
        slots[index] = Slot::Reserved;
        u32::try_from(index).map_err(|_| Errno(libc::ENOMEM))
    }

    fn set(&self, index: u32, value: Slot<T>) {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = slots.get_mut(index as usize) {
            *slot = value;
        }
    }

    /// Stores the object of a reserved index.
    pub(crate) fn put(&self, index: u32, object: Arc<T>) {
        self.set(index, Slot::Used(object));
    }

    /// Removes the object but keeps its index reserved.
    pub(crate) fn hide(&self, index: u32) {
        self.set(index, Slot::Reserved);
    }

    /// Frees the index.
    pub(crate) fn remove(&self, index: u32) {
        self.set(index, Slot::Free);
    }

    /// Calls `f` with the object at `index`, if there is one, while the table is locked.
    pub(crate) fn with<R>(&self, index: u32, f: impl FnOnce(&Arc<T>) -> R) -> Option<R> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        match slots.get(index as usize) {
            Some(Slot::Used(object)) => Some(f(object)),
            _ => None,
        }
    }

    /// Returns the object with the smallest `key`.
    pub(crate) fn least<K: Ord>(&self, key: impl Fn(&T) -> K) -> Option<Arc<T>> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let used = slots.iter().filter_map(Slot::object);
        used.min_by_key(|object| key(object)).map(Arc::clone)
    }

    /// Returns all objects.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        slots.iter().filter_map(Slot::object).map(Arc::clone).collect()
    }
}
