//! The account: what is in use, by whom, and the highest it has been (rules D.1, D.2, D.4).

use std::collections::BTreeMap;

/// Names a row of the ledger; `LabelId::default()` is the unlabelled row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LabelId(pub(crate) u32);

impl LabelId {
    /// Its number: rows are numbered from 0, the unlabelled one, in the order of their making.
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The label of a number, for traces; a pool that has no such row counts it as unlabelled.
    pub fn from_index(index: usize) -> Self {
        Self(u32::try_from(index).unwrap_or(u32::MAX))
    }
}

/// What is allocated under one label.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelRow {
    /// The label, nested ones joined with `/`; empty for what has none.
    pub name: String,
    /// Bytes charged now.
    pub active: u64,
    /// The highest `active` since the start or the last `reset_peak`.
    pub peak: u64,
    /// Live allocations.
    pub count: u64,
}

/// Counters and peaks. Every change of state of the pool goes through one of its methods.
#[derive(Debug)]
pub struct Ledger {
    pub(crate) active: u64,
    pub(crate) peak: u64,
    pub(crate) asked: u64,
    pub(crate) mapped: u64,
    pub(crate) peak_with_mapped: u64,
    pub(crate) wrapped: u64,
    pub(crate) allocations: u64,
    pub(crate) allocations_ever: u64,
    pub(crate) asked_ever: u64,
    pub(crate) system_allocations: u64,
    pub(crate) committed_ever: u64,
    pub(crate) reserved: u64,
    pub(crate) peak_reserved: u64,
    /// Bytes obtained and given back that nobody has been told of.
    pub(crate) driver_bytes: (u64, u64),
    pub(crate) driver_called: bool,
    rows: Vec<LabelRow>,
    ids: BTreeMap<String, LabelId>,
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            active: 0,
            peak: 0,
            asked: 0,
            mapped: 0,
            peak_with_mapped: 0,
            wrapped: 0,
            allocations: 0,
            allocations_ever: 0,
            asked_ever: 0,
            system_allocations: 0,
            committed_ever: 0,
            reserved: 0,
            peak_reserved: 0,
            driver_bytes: (0, 0),
            driver_called: false,
            rows: vec![LabelRow::default()],
            ids: BTreeMap::new(),
        }
    }
}

impl Ledger {
    /// The row of `name` inside the label `parent`, made if it is new.
    pub(crate) fn intern(&mut self, parent: LabelId, name: &str) -> LabelId {
        let full = match self.rows[parent.0 as usize].name.as_str() {
            "" => name.to_owned(),
            outer => format!("{outer}/{name}"),
        };
        if full.is_empty() {
            return LabelId::default();
        }
        if let Some(&id) = self.ids.get(&full) {
            return id;
        }
        let id = LabelId(self.rows.len() as u32);
        self.rows.push(LabelRow { name: full.clone(), ..LabelRow::default() });
        self.ids.insert(full, id);
        id
    }

    #[inline]
    pub(crate) fn allocated(&mut self, label: LabelId, size: u64, asked: u64) {
        self.active += size;
        self.asked += asked;
        self.allocations += 1;
        self.allocations_ever += 1;
        self.asked_ever = self.asked_ever.saturating_add(asked);
        self.raise_peaks();
        let row = &mut self.rows[label.0 as usize];
        row.active += size;
        row.count += 1;
        row.peak = row.peak.max(row.active);
    }

    #[inline]
    pub(crate) fn freed(&mut self, label: LabelId, size: u64, asked: u64) {
        self.active -= size;
        self.asked -= asked;
        self.allocations -= 1;
        let row = &mut self.rows[label.0 as usize];
        row.active -= size;
        row.count -= 1;
    }

    pub(crate) fn map(&mut self, size: u64) {
        self.mapped += size;
        self.raise_peaks();
    }

    /// The driver gave `size` bytes.
    pub(crate) fn obtained(&mut self, size: u64) {
        self.system_allocations += 1;
        self.committed_ever = self.committed_ever.saturating_add(size);
        self.reserved = self.reserved.saturating_add(size);
        self.peak_reserved = self.peak_reserved.max(self.reserved);
        self.driver_bytes.0 = self.driver_bytes.0.saturating_add(size);
        self.driver_called = true;
    }

    pub(crate) fn given_back(&mut self, size: u64) {
        self.reserved = self.reserved.saturating_sub(size);
        self.driver_bytes.1 = self.driver_bytes.1.saturating_add(size);
        self.driver_called = true;
    }

    #[inline]
    fn raise_peaks(&mut self) {
        self.peak = self.peak.max(self.active);
        self.peak_with_mapped = self.peak_with_mapped.max(self.active.saturating_add(self.mapped));
    }

    pub(crate) fn reset_peak(&mut self) {
        self.peak = self.active;
        self.peak_with_mapped = self.active.saturating_add(self.mapped);
        self.peak_reserved = self.reserved;
        for row in &mut self.rows {
            row.peak = row.active;
        }
    }

    /// The whole name of a label.
    pub(crate) fn label_name(&self, id: u32) -> Option<&str> {
        self.rows.get(id as usize).map(|row| row.name.as_str())
    }

    /// The label, or the unlabelled row where there is none of its number.
    #[inline]
    pub(crate) fn known(&self, label: LabelId) -> LabelId {
        if (label.0 as usize) < self.rows.len() { label } else { LabelId::default() }
    }

    /// The rows that hold something now, with their numbers.
    pub(crate) fn held_rows(&self) -> Vec<(LabelId, LabelRow)> {
        let rows = self.rows.iter().enumerate().filter(|(_, row)| row.count > 0);
        rows.map(|(index, row)| (LabelId(index as u32), row.clone())).collect()
    }

    /// The rows that ever held something, most active first, then by name.
    pub fn rows(&self) -> Vec<LabelRow> {
        let mut rows: Vec<_> = self.rows.iter().filter(|row| row.peak > 0).cloned().collect();
        rows.sort_by(|a, b| b.active.cmp(&a.active).then_with(|| a.name.cmp(&b.name)));
        rows
    }

    /// The labels that hold most now, at most `most`.
    pub(crate) fn holders(&self, most: usize) -> Vec<LabelRow> {
        let mut holders = self.rows();
        holders.retain(|row| row.active > 0);
        holders.truncate(most);
        holders
    }

    pub(crate) fn check(&self) {
        let sum: u64 = self.rows.iter().map(|row| row.active).sum();
        assert_eq!(sum, self.active, "D.4: rows add up to active");
        let count: u64 = self.rows.iter().map(|row| row.count).sum();
        assert_eq!(count, self.allocations);
        assert!(self.peak >= self.active && self.peak_with_mapped >= self.active + self.mapped);
        assert!(self.asked <= self.active && self.active <= self.reserved);
        assert!(self.peak_reserved >= self.reserved);
    }
}
