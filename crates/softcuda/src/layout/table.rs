//! Fills the table: the names of structures and members, and what is absent in which generation.

use std::collections::BTreeSet;

use super::{
    Batch, Batches, Broadcast, Channel, Collective, Communicator, Connection, Field, Fifo, Layout,
    LayoutError, ListCollective, ListP2p, ListPart, Lists, P2p, P2pHalf, Profiler, Work,
    dwarf::{Structure, Structures},
};

pub(super) type Found<T> = Result<T, LayoutError>;

/// Structures of every release.
const COMMON: &[&str] = &["ncclDevChannel", "ncclDevChannelPeer", "ncclConnInfo"];
/// Structures of 2.18 to 2.21.
const OF_LISTS: &[&str] = &["ncclWork", "ncclWorkElem", "ncclWorkElemReg", "ncclWorkElemP2p"];
/// Structures from 2.22 on.
const OF_BATCHES: &[&str] =
    &["ncclDevKernelArgs", "ncclDevWorkBatch", "ncclDevWorkColl", "ncclDevWorkCollReg", "ncclDevWorkP2p"];
/// The communicator with its channels: from 2.28 on, and before.
const COMMUNICATORS: &[&str] = &["ncclKernelCommAndChannels", "ncclDevCommAndChannels"];
/// Structures of some releases.
const OPTIONAL: &[&str] = &["ncclConnFifo", "ncclDevProfiler", BROADCAST];
const BROADCAST: &str = "ncclDevWorkBcast";

/// Reads the table from a library's debug information.
pub(super) fn read(elf: &object::File<'_>) -> Found<Layout> {
    let names: BTreeSet<_> =
        [COMMON, OF_LISTS, OF_BATCHES, COMMUNICATORS, OPTIONAL].into_iter().flatten().copied().collect();
    // No other structure shows whether a release has this one, so older releases are read to the end.
    let enough = |found: &Structures| found.get(BROADCAST).is_some() && table(found).is_ok();
    let structures = Structures::read(elf, &names, enough)?;
    table(&structures)
}

fn table(structures: &Structures) -> Found<Layout> {
    let of = Names(structures);
    let is_lists = structures.get("ncclWork").is_some();
    let work = if is_lists { Work::Lists(lists(&of)?.into()) } else { Work::Batches(batches(&of)?.into()) };
    Ok(Layout {
        communicator: communicator(&of, is_lists)?,
        channel: channel(&of)?,
        connection: connection(&of, is_lists)?,
        work,
    })
}

/// Structures, which are errors if they are missing.
pub(super) struct Names<'a>(pub(super) &'a Structures);

impl<'a> Names<'a> {
    pub(super) fn get(&self, name: &'static str) -> Found<Members<'a>> {
        self.optional(name).ok_or_else(|| LayoutError::Missing(format!("structure {name}")))
    }

    fn optional(&self, name: &'static str) -> Option<Members<'a>> {
        self.0.get(name).map(|structure| Members { name, structure })
    }
}

/// Members of a structure, which are errors if they are missing.
#[derive(Clone, Copy)]
pub(super) struct Members<'a> {
    name: &'static str,
    structure: &'a Structure,
}

impl Members<'_> {
    pub(super) fn get(&self, member: &str) -> Found<Field> {
        self.optional(member).ok_or_else(|| LayoutError::Missing(format!("{}.{member}", self.name)))
    }

    pub(super) fn optional(&self, member: &str) -> Option<Field> {
        self.structure.members.get(member).map(|&member| member.into())
    }

    /// Returns a member that releases of the older generation may lack.
    fn absent_if(&self, is_lists: bool, member: &str) -> Found<Option<Field>> {
        if is_lists { Ok(self.optional(member)) } else { self.get(member).map(Some) }
    }

    pub(super) fn offset(&self, member: &str) -> Found<usize> {
        Ok(self.get(member)?.offset)
    }

    pub(super) fn size(&self) -> usize {
        self.structure.size
    }
}

fn communicator(of: &Names<'_>, is_lists: bool) -> Found<Communicator> {
    let whole = of.optional(COMMUNICATORS[0]).map_or_else(|| of.get(COMMUNICATORS[1]), Ok)?;
    let comm = |member: &str| whole.get(&format!("comm.{member}"));
    let optional = |member: &str| whole.optional(&format!("comm.{member}"));
    let work_consumed = optional("workConsumed");
    let profiler = match optional("workStarted") {
        Some(started) => {
            // 2.26, the last one with this member, has counters for rings.
            let has_rings = work_consumed.is_none();
            let ring = if has_rings { Some(of.get("ncclDevProfiler")?.size()) } else { None };
            Some(Profiler { started, completed: comm("workCompleted")?, ring })
        }
        None => None,
    };
    // 2.22 to 2.25 have only the one, from 2.27 on only the other, 2.26 has both.
    if !is_lists && work_consumed.is_none() && profiler.is_none() {
        return Err(LayoutError::Missing(format!("{}.comm.workConsumed or workStarted", whole.name)));
    }
    Ok(Communicator {
        rank: comm("rank")?,
        ranks: comm("nRanks")?,
        buffer_sizes: comm("buffSizes")?.offset,
        p2p_chunk: whole.absent_if(is_lists, "comm.p2pChunkSize")?,
        abort_flag: comm("abortFlag")?,
        work_consumed,
        profiler,
        channels: whole.offset("channels")?,
    })
}

fn channel(of: &Names<'_>) -> Found<Channel> {
    let channel = of.get("ncclDevChannel")?;
    Ok(Channel {
        size: channel.size(),
        peers: channel.get("peers")?,
        previous: channel.get("ring.prev")?,
        next: channel.get("ring.next")?,
        user_ranks: channel.get("ring.userRanks")?,
        index: channel.get("ring.index")?,
        up: channel.get("tree.up")?,
        down: channel.offset("tree.down")?,
        fifo_done: channel.get("workFifoDone")?,
        work_counter: channel.optional("workCounter"),
    })
}

fn connection(of: &Names<'_>, is_lists: bool) -> Found<Connection> {
    let peer = of.get("ncclDevChannelPeer")?;
    let connection = of.get("ncclConnInfo")?;
    let fifo = match connection.optional("connFifo") {
        Some(entries) => {
            let entry = of.get("ncclConnFifo")?;
            Fifo::Entries {
                entries,
                size: entry.size(),
                mode: entry.get("mode")?,
                offset: entry.get("offset")?,
                bytes: entry.get("size")?,
            }
        }
        None => Fifo::Arrays { sizes: connection.get("sizesFifo")?, offsets: connection.get("offsFifo")? },
    };
    Ok(Connection {
        size: connection.size(),
        sends: peer.offset("send")?,
        receives: peer.offset("recv")?,
        buffers: connection.offset("buffs")?,
        tail: connection.get("tail")?,
        head: connection.get("head")?,
        flags: connection.get("flags")?,
        step: connection.get("step")?,
        step_size: connection.absent_if(is_lists, "stepSize")?,
        fifo,
    })
}

fn lists(of: &Names<'_>) -> Found<Lists> {
    let work = of.get("ncclWork")?;
    let element = of.get("ncclWorkElem")?;
    let registered = of.get("ncclWorkElemReg")?;
    Ok(Lists {
        size: work.size(),
        next: work.get("header.workNext")?,
        done_acks: work.get("header.doneAcks")?,
        function: work.get("header.funcIndex")?,
        is_last: work.get("header.isLast")?,
        in_fifo: work.get("header.inFifo")?,
        kind: work.get("header.type")?,
        elements: work.offset("elems")?,
        registered: registered.offset("elem")?,
        registered_size: registered.size(),
        collective: ListCollective {
            size: element.size(),
            is_used: element.get("isUsed")?,
            argument_is_pointer: element.get("redOpArgIsPtr")?,
            warps: element.get("nWarps")?,
            input: element.get("sendbuff")?,
            output: element.get("recvbuff")?,
            count: element.get("count")?,
            root: element.get("root")?,
            argument: element.get("redOpArg")?,
            part: list_part(element)?,
        },
        p2p: list_p2p(of)?,
    })
}

fn list_part(element: Members<'_>) -> Found<ListPart> {
    if element.optional("workOffset").is_none() {
        return Ok(ListPart::Computed {
            last_chunk: element.get("lastChunkSize")?,
            channel: element.get("bid")?,
            channels: element.get("nChannels")?,
        });
    }
    Ok(ListPart::Given {
        chunk: element.get("chunkCount")?,
        count: element.get("workCount")?,
        last_chunk: element.get("lastChunkCount")?,
        offset: element.get("workOffset")?,
    })
}

fn list_p2p(of: &Names<'_>) -> Found<ListP2p> {
    let element = of.get("ncclWorkElemP2p")?;
    Ok(ListP2p {
        size: element.size(),
        peer: element.get("peer")?,
        protocol: element.get("proto")?,
        kind: element.get("p2pType")?,
        groups: element.get("ngroups")?,
        registered: element.optional("reg"),
        buffer: [element.get("buffHi32")?, element.get("buffLo32")?],
        count: [element.get("countHi32")?, element.get("countLo32")?],
        chunk: element.get("chunkSize")?,
    })
}

fn batches(of: &Names<'_>) -> Found<Batches> {
    let arguments = of.get("ncclDevKernelArgs")?;
    let batch = of.get("ncclDevWorkBatch")?;
    Ok(Batches {
        arguments: arguments.size(),
        communicator: arguments.get("comm")?,
        channel_mask: arguments.get("channelMask")?,
        storage: arguments.get("workStorageType")?,
        work_mask: arguments.get("workMask")?,
        work_buffer: arguments.get("workBuf")?,
        batch: Batch {
            size: batch.size(),
            next_jump: batch.get("nextJump")?,
            next_extends: batch.get("nextExtends")?,
            kind: batch.get("workType")?,
            function: batch.get("funcId")?,
            offset: batch.get("offsetBase")?,
            places: batch.get("offsetBitset")?,
        },
        collective: collective(of)?,
        registered_size: of.get("ncclDevWorkCollReg")?.size(),
        p2p: p2p(of)?,
        broadcast: of.optional(BROADCAST).map(broadcast).transpose()?,
    })
}

fn broadcast(work: Members<'_>) -> Found<Broadcast> {
    Ok(Broadcast {
        size: work.size(),
        ring_depth: work.get("ringDepth")?,
        chunk: work.get("chunkSize")?,
        input: work.get("sendbuff")?,
        output: work.get("recvbuff")?,
        bytes: work.get("bytes")?,
        done: work.get("bytes_done")?,
    })
}

fn collective(of: &Names<'_>) -> Found<Collective> {
    let work = of.get("ncclDevWorkColl")?;
    // 2.22 and 2.23 have both bits in regUsed and do not register collectives with the network.
    let net_registered = work.optional("netRegUsed");
    let one_rank_per_node = match net_registered {
        Some(_) => Some(work.get("isOneRPN")?),
        None => None,
    };
    let three = |names: [&str; 3]| -> Found<[Field; 3]> {
        Ok([work.get(names[0])?, work.get(names[1])?, work.get(names[2])?])
    };
    Ok(Collective {
        size: work.size(),
        channel_low: work.get("channelLo")?,
        channel_high: work.get("channelHi")?,
        argument_is_pointer: work.get("redOpArgIsPtr")?,
        net_registered,
        one_rank_per_node,
        profiled: work.optional("profilerEnabled"),
        root: work.get("root")?,
        input: work.get("sendbuff")?,
        output: work.get("recvbuff")?,
        counts: three(["cbd.countLo", "cbd.countMid", "cbd.countHi"])?,
        chunk_grains: three(["cbd.chunkGrainsLo", "cbd.chunkGrainsMid", "cbd.chunkGrainsHi"])?,
        argument: work.get("redOpArg")?,
    })
}

fn p2p(of: &Names<'_>) -> Found<P2p> {
    let work = of.get("ncclDevWorkP2p")?;
    let half = |side: &str, count: &str| -> Found<P2pHalf> {
        let get = |suffix: &str| work.get(&format!("{side}{suffix}"));
        let registered = work.optional(&format!("{side}NetReg"));
        Ok(P2pHalf {
            buffer: get("Addr")?,
            bytes: get("Bytes")?,
            rank: get("Rank")?,
            channels: work.get(count)?,
            chunk: get("ChunkSize_u32fp8")?,
            is_ll: get("ProtoLL")?,
            // 2.22 and 2.23 name it so.
            net_registered: registered.map_or_else(|| get("Registered"), Ok)?,
            whole: registered.is_none(),
        })
    };
    Ok(P2p {
        size: work.size(),
        channels: work.get("nP2pChannels")?,
        channel_base: work.get("channelBase")?,
        profiled: work.optional("profilerEnabled"),
        send: half("send", "nSendChannels")?,
        receive: half("recv", "nRecvChannels")?,
    })
}
