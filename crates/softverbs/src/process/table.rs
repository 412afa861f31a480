//! Objects by their index in a table of the segment.

use std::sync::{Arc, PoisonError, RwLock};

use crate::abi::border::Errno;

/// See the module.
pub(crate) struct Table<T> {
    slots: RwLock<Slots<T>>,
    max: u32,
}

struct Slots<T> {
    all: Vec<Slot<T>>,
    /// No smaller index is free.
    free_from: usize,
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
        Self { slots: RwLock::new(Slots { all: Vec::new(), free_from: 0 }), max }
    }

    /// Counts the indices that are not free.
    pub(crate) fn used(&self) -> usize {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        slots.all.iter().filter(|slot| !matches!(slot, Slot::Free)).count()
    }

    /// Reserves a free index for an object under construction.
    pub(crate) fn reserve(&self) -> Result<u32, Errno> {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let Slots { all, free_from } = &mut *slots;
        let found = all.iter().skip(*free_from).position(|slot| matches!(slot, Slot::Free));
        let index = found.map_or(all.len(), |past| *free_from + past);
        if index == self.max as usize {
            return Err(Errno(libc::ENOMEM));
        }
        if index == all.len() {
            all.push(Slot::Free);
        }
        all[index] = Slot::Reserved;
        *free_from = index + 1;
        u32::try_from(index).map_err(|_| Errno(libc::ENOMEM))
    }

    fn set(&self, index: u32, value: Slot<T>) {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        if matches!(value, Slot::Free) {
            slots.free_from = slots.free_from.min(index as usize);
        }
        if let Some(slot) = slots.all.get_mut(index as usize) {
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
        match slots.all.get(index as usize) {
            Some(Slot::Used(object)) => Some(f(object)),
            _ => None,
        }
    }

    /// Returns the object with the smallest `key`.
    pub(crate) fn least<K: Ord>(&self, key: impl Fn(&T) -> K) -> Option<Arc<T>> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let used = slots.all.iter().filter_map(Slot::object);
        used.min_by_key(|object| key(object)).map(Arc::clone)
    }

    /// Returns all objects.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        slots.all.iter().filter_map(Slot::object).map(Arc::clone).collect()
    }
}
