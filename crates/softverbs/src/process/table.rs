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

    /// Indices that are not free.
    pub(crate) fn used(&self) -> usize {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        slots.iter().filter(|slot| !matches!(slot, Slot::Free)).count()
    }

    /// A free index, for an object that is being made.
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

    /// The object of a reserved index is made.
    pub(crate) fn put(&self, index: u32, object: Arc<T>) {
        self.set(index, Slot::Used(object));
    }

    /// The object goes away: nobody finds it any more, but its index is not yet free.
    pub(crate) fn hide(&self, index: u32) {
        self.set(index, Slot::Reserved);
    }

    /// The index is free again.
    pub(crate) fn remove(&self, index: u32) {
        self.set(index, Slot::Free);
    }

    /// Runs `f` on an object.
    pub(crate) fn with<R>(&self, index: u32, f: impl FnOnce(&Arc<T>) -> R) -> Option<R> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        match slots.get(index as usize) {
            Some(Slot::Used(object)) => Some(f(object)),
            _ => None,
        }
    }

    /// The object for which `key` is least.
    pub(crate) fn least<K: Ord>(&self, key: impl Fn(&T) -> K) -> Option<Arc<T>> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let used = slots.iter().filter_map(Slot::object);
        used.min_by_key(|object| key(object)).map(Arc::clone)
    }

    /// All objects.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        slots.iter().filter_map(Slot::object).map(Arc::clone).collect()
    }
}
