//! Which function a number in a work is: the tables of every release.

use std::{collections::HashMap, fmt};

use crate::{
    Unknown,
    protocol::Protocol,
    reduce::{DataType, Division, Operator},
};

/// What a function does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Sends and receives.
    SendRecv,
    /// Every rank's part to every rank.
    AllGather,
    /// The root's buffer to every rank.
    Broadcast,
    /// Parts of different sizes to every rank.
    AllGatherV,
    /// The reduction to every rank.
    AllReduce,
    /// The reduction to the root.
    Reduce,
    /// A part of the reduction to every rank.
    ReduceScatter,
}

/// How the ranks of a collective are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// A double binary tree.
    Tree,
    /// A ring.
    Ring,
    /// A switch that reduces, from every GPU of a node.
    CollnetDirect,
    /// A switch that reduces, from a chain of a node's GPUs.
    CollnetChain,
    /// An `NVLink` switch that reduces.
    Nvls,
    /// `NVLink` switches, joined by a tree.
    NvlsTree,
    /// Parallel aggregated trees.
    Pat,
}

/// A function of the device code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Function {
    /// What it does.
    pub kind: Kind,
    /// The operator, [`Operator::Sum`] where nothing is reduced.
    pub operator: Operator,
    /// The type, [`DataType::I8`] where nothing is reduced.
    pub data_type: DataType,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The protocol.
    pub protocol: Protocol,
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, operator, data_type, algorithm, protocol } = self;
        write!(f, "{kind:?} {operator:?} {data_type:?} {algorithm:?} {protocol}")
    }
}

/// The functions of a release by their numbers.
#[derive(Debug, Clone)]
pub struct Functions {
    by_number: HashMap<u32, Function>,
    /// What the argument of a division is in this release.
    pub division: Division,
}

const ALL_REDUCE: [Algorithm; 6] = [
    Algorithm::Tree,
    Algorithm::Ring,
    Algorithm::CollnetDirect,
    Algorithm::CollnetChain,
    Algorithm::Nvls,
    Algorithm::NvlsTree,
];
/// Algorithms of all-gather and reduce-scatter: up to 2.19, up to 2.22, from 2.23 on.
const GATHER: [&[Algorithm]; 3] = [
    &[Algorithm::Ring, Algorithm::Nvls],
    &[Algorithm::Ring, Algorithm::CollnetDirect, Algorithm::Nvls],
    &[Algorithm::Ring, Algorithm::CollnetDirect, Algorithm::Nvls, Algorithm::Pat],
];

/// What distinguishes the tables of releases.
#[derive(Debug, Clone, Copy)]
struct Form {
    gather: &'static [Algorithm],
    types: &'static [DataType],
    all_gather_v: bool,
}

impl Form {
    /// Returns every form that a release has or might have.
    fn all() -> impl Iterator<Item = Self> {
        let types = [&DataType::ALL[..10], &DataType::ALL[..]];
        GATHER.into_iter().flat_map(move |gather| {
            types.into_iter().flat_map(move |types| {
                [false, true].into_iter().map(move |all_gather_v| Self { gather, types, all_gather_v })
            })
        })
    }

    /// Returns the functions in the table's order.
    fn rows(self) -> Vec<Function> {
        let mut rows = Rows(Vec::new());
        rows.push(Kind::SendRecv, &[Algorithm::Ring], &[Protocol::Simple]);
        rows.push(Kind::AllGather, self.gather, &Protocol::ALL);
        rows.push(Kind::Broadcast, &[Algorithm::Ring], &Protocol::ALL);
        if self.all_gather_v {
            rows.push(Kind::AllGatherV, &[Algorithm::Ring], &Protocol::ALL);
        }
        rows.push_reductions(Kind::AllReduce, &Operator::ALL, &ALL_REDUCE, self.types);
        rows.push_reductions(Kind::Reduce, &Operator::ALL, &[Algorithm::Ring], self.types);
        rows.push_reductions(Kind::ReduceScatter, &Operator::ALL, self.gather, self.types);
        rows.0
    }
}

struct Rows(Vec<Function>);

impl Rows {
    fn push(&mut self, kind: Kind, algorithms: &[Algorithm], protocols: &[Protocol]) {
        self.push_one(kind, Operator::Sum, DataType::I8, algorithms, protocols);
    }

    fn push_reductions(
        &mut self,
        kind: Kind,
        operators: &[Operator],
        algorithms: &[Algorithm],
        types: &[DataType],
    ) {
        for &operator in operators {
            for &data_type in types {
                self.push_one(kind, operator, data_type, algorithms, &Protocol::ALL);
            }
        }
    }

    fn push_one(
        &mut self,
        kind: Kind,
        operator: Operator,
        data_type: DataType,
        algorithms: &[Algorithm],
        protocols: &[Protocol],
    ) {
        for &algorithm in algorithms {
            for &protocol in protocols {
                self.0.push(Function { kind, operator, data_type, algorithm, protocol });
            }
        }
    }
}

impl Functions {
    /// Reads the table `ncclDevFuncRowToId`, which releases from 2.19 on have. It has a number for
    /// each row and may have one entry more. Rows without a function have -1.
    pub fn of_table(table: &[i32]) -> Result<Self, Unknown> {
        let fits = |rows: usize| rows == table.len() || rows + 1 == table.len();
        let rows = Form::all().map(Form::rows).find(|rows| fits(rows.len()));
        let rows = rows.ok_or_else(|| Unknown::new("table of functions with the length", table.len()))?;
        let mut by_number = HashMap::new();
        let mut division = Division::Plain;
        for (function, &number) in rows.into_iter().zip(table) {
            let Ok(number) = u32::try_from(number) else { continue };
            let first = *by_number.entry(number).or_insert(function);
            if function.operator == Operator::SumPostDiv && first.data_type != function.data_type {
                // One function divides signed and unsigned elements.
                division = Division::WithSign;
            }
        }
        Ok(Self { by_number, division })
    }

    /// Returns the functions of 2.18, whose numbers follow a formula.
    pub fn of_formula() -> Self {
        const KINDS: [Kind; 5] =
            [Kind::Broadcast, Kind::Reduce, Kind::AllGather, Kind::ReduceScatter, Kind::AllReduce];
        // 0 is for none, and each type has a kernel for one rank.
        const FIRST: u32 = 1 + 10;
        let mut rows = Rows(Vec::new());
        for kind in KINDS {
            rows.push_reductions(kind, &Operator::OLD, &ALL_REDUCE, &DataType::ALL[..10]);
        }
        rows.push(Kind::SendRecv, &[Algorithm::Ring], &[Protocol::Simple]);
        let by_number = (FIRST..).zip(rows.0).collect();
        Self { by_number, division: Division::Plain }
    }

    /// Returns the function with this number.
    pub fn get(&self, number: u32) -> Result<Function, Unknown> {
        self.by_number.get(&number).copied().ok_or_else(|| Unknown::new("function", number))
    }

    /// Returns every function with its number.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Function)> + '_ {
        self.by_number.iter().map(|(number, function)| (*number, *function))
    }
}
