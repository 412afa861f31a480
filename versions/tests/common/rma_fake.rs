//! The fake as a plugin for one-sided transfers.

use nccl_net_versions::*;

use super::fake::{Fake, Thing, lock, record};

/// Contexts for transfers and their requests.
#[derive(Debug)]
pub struct Contexts {
    number: u32,
    requests: RequestPool<Thing>,
}

fn place(place: Option<Place<'_, Thing>>) -> String {
    place.map_or("-".to_owned(), |place| format!("{}+{}", place.mr.0, place.offset))
}

impl<const ID: u32, const FULL: bool> RmaPlugin for Fake<ID, FULL> {
    type Context = Thing;
    type Listen = Thing;
    type Coll = Thing;
    type RmaContext = Contexts;
    type Mr = Thing;
    type Request = Pooled<Thing>;

    fn init(args: &RmaInit) -> Result<Thing, Failure> {
        let args = format!("v{} id={}", args.version, args.comm_id);
        Ok(Thing(record(ID).enter("init", args)?.0))
    }

    fn finalize(ctx: Thing) -> Result<(), Failure> {
        record(ID).enter("finalize", format!("ctx={}", ctx.0)).map(drop)
    }

    fn devices() -> Result<usize, Failure> {
        record(ID).enter("devices", String::new()).map(|_| 2)
    }

    fn properties(dev: usize) -> Result<Properties, Failure> {
        record(ID).enter("properties", format!("dev={dev}"))?;
        Ok(*lock(&record(ID).properties))
    }

    fn coll_properties(coll: &Thing) -> Result<RmaProperties, Failure> {
        let (_, flushes) = record(ID).enter("coll_properties", format!("coll={}", coll.0))?;
        Ok(RmaProperties { flushes_all_puts_on_any_signal: flushes })
    }

    fn listen(ctx: &Thing, dev: usize, handle: &mut HandleBuf) -> Result<Thing, Failure> {
        let dirt = handle.iter().filter(|&&b| b != 0).count();
        handle[0] = 0xA5;
        Ok(Thing(record(ID).enter("listen", format!("ctx={} dev={dev} dirt={dirt}", ctx.0))?.0))
    }

    fn connect(listen: &Thing, handles: &[&HandleBuf], rank: usize) -> Result<Thing, Failure> {
        let ends: Vec<_> = handles.iter().map(|handle| (handle[0], handle[127])).collect();
        Ok(Thing(record(ID).enter("connect", format!("listen={} rank={rank} {ends:?}", listen.0))?.0))
    }

    fn create_context(coll: &Thing, config: &RmaConfig) -> Result<Contexts, Failure> {
        let (number, _) = record(ID).enter("create_context", format!("coll={} {config:?}", coll.0))?;
        Ok(Contexts { number, requests: RequestPool::rma(8, |_| Thing(number)) })
    }

    fn reg_mr(
        coll: &Thing,
        buffer: Buffer,
        kind: MemKind,
        dmabuf: Option<DmaBuf>,
        flags: MrFlags,
    ) -> Result<Thing, Failure> {
        let Buffer { addr, len } = buffer;
        let MrFlags { strong_order, never_reset } = flags;
        let args =
            format!("coll={} {addr}+{len} {kind:?} {dmabuf:?} so={strong_order} grows={never_reset}", coll.0);
        Ok(Thing(record(ID).enter("reg_mr", args)?.0))
    }

    fn dereg_mr(coll: &Thing, mr: Thing) -> Result<(), Failure> {
        record(ID).enter("dereg_mr", format!("coll={} mr={}", coll.0, mr.0)).map(drop)
    }

    fn iput<'a>(ctx: &'a Contexts, put: &Put<'_, Self>) -> Result<&'a Tagged<Pooled<Thing>>, Failure> {
        let signal = put.signal.as_ref().map_or("-".to_owned(), |signal| {
            format!("{} value={} strong={}", place(Some(signal.place)), signal.value, signal.strong)
        });
        let args = format!(
            "ctx={} context={} rank={} size={} src={} dst={} more={} signal={signal}",
            ctx.number,
            put.context,
            put.rank,
            put.size,
            place(put.src),
            place(put.dst),
            put.more,
        );
        record(ID).enter("iput", args)?;
        ctx.requests.acquire().ok_or(Failure::Internal)
    }

    fn iget<'a>(ctx: &'a Contexts, get: &Get<'_, Self>) -> Result<&'a Tagged<Pooled<Thing>>, Failure> {
        let args = format!(
            "ctx={} context={} rank={} size={} remote={} local={} more={}",
            ctx.number,
            get.context,
            get.rank,
            get.size,
            place(Some(get.remote)),
            place(Some(get.local)),
            get.more,
        );
        record(ID).enter("iget", args)?;
        ctx.requests.acquire().ok_or(Failure::Internal)
    }

    fn iflush<'a>(
        ctx: &'a Contexts,
        context: usize,
        mr: &Thing,
        rank: usize,
    ) -> Result<Option<&'a Tagged<Pooled<Thing>>>, Failure> {
        let args = format!("ctx={} context={context} mr={} rank={rank}", ctx.number, mr.0);
        Ok(record(ID).enter("iflush", args)?.1.then(|| ctx.requests.acquire()).flatten())
    }

    fn test(coll: &Thing, request: &Pooled<Thing>) -> Result<bool, Failure> {
        let (_, now) = record(ID).enter("test", format!("coll={} request={}", coll.0, request.0))?;
        if now {
            request.release();
        }
        Ok(now)
    }

    fn progress(ctx: &Contexts) -> Result<(), Failure> {
        record(ID).enter("progress", format!("ctx={}", ctx.number)).map(drop)
    }

    fn has_error(ctx: &Contexts) -> Result<bool, Failure> {
        record(ID).enter("has_error", format!("ctx={}", ctx.number)).map(|(_, error)| error)
    }

    fn destroy_context(ctx: Contexts) -> Result<(), Failure> {
        record(ID).enter("destroy_context", format!("ctx={}", ctx.number)).map(drop)
    }

    fn close_coll(coll: Thing) -> Result<(), Failure> {
        record(ID).enter("close_coll", format!("coll={}", coll.0)).map(drop)
    }

    fn close_listen(listen: Thing) -> Result<(), Failure> {
        record(ID).enter("close_listen", format!("listen={}", listen.0)).map(drop)
    }
}
