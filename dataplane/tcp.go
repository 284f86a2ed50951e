package dataplane

import (
	"time"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/internal/wire"
)

// track follows a TCP connection by one of its packets. It returns false if the packet belongs
// to no connection that is known any more: the session it found has been removed.
func (w *Worker) track(pk *packet, svc *service, rec *record, dir uint32) bool {
	if w.dry {
		return true
	}
	v := &pk.v
	seq, ack := v.Seq(pk.ip)
	rec.lock.acquire()
	ended := rec.tcp.Ended()
	event := rec.tcp.Update(clienttable.Dir(dir), v.TCPFlags, seq, ack, v.PayloadLen())
	if event == clienttable.TCPSame {
		oneSided := w.p.cfg.Peers != nil && dir == toNode && v.TCPFlags&(wire.SYN|wire.ACK|wire.RST) == wire.ACK && rec.tcp.HalfOpen()
		if oneSided {
			rec.tcp = clienttable.OneWayTCP()
			rec.tcp.Update(clienttable.FromClient, v.TCPFlags, seq, ack, v.PayloadLen())
		}
		rec.lock.release()
		if oneSided {
			w.answeredElsewhere(pk, rec, svc)
		}
		return true
	}
	state := rec.tcp
	rec.lock.release()
	switch event {
	case clienttable.TCPRestarted:
		if ended && dir == toNode {
			// The client uses the port again while the old session lingers: the server
			// is selected anew.
			w.p.sessions().DeleteAt(w.now, pk.key)
			return false
		}
	case clienttable.TCPStarted, clienttable.TCPIgnored, clienttable.TCPHalfClosed:
		return true
	}
	w.setLife(v.Proto, rec, svc, svc.timers.TCP(state, rec.vip.Port, svc.conf.Mode))
	return true
}

// setLife gives both entries of a session another life.
func (w *Worker) setLife(proto uint8, rec *record, svc *service, life clienttable.Life) {
	w.p.sessions().SetLife(w.now, rec.other(proto, toClient), life)
	if rec.flags&oneWay != 0 {
		return
	}
	w.p.sessions().SetLife(w.now, rec.other(proto, toNode), back(life))
}

// back is the life of the entry towards the client: somewhat longer, so that it does not age
// before its session does.
func back(l clienttable.Life) clienttable.Life {
	l.TTL = min(l.TTL+l.TTL/touchShare, clienttable.MaxTTL)
	return l
}

// touchShare is the part of the idle time after which a packet of one direction keeps the
// entry of the other one alive.
const touchShare = 16

// shortest is the shortest idle time of a service's sessions, whatever port they are for.
func shortest(a *clienttable.Ageing, t *clienttable.Timers) time.Duration {
	least := t.Life(0, 0).TTL
	for _, p := range a.Ports {
		least = min(least, t.Life(wire.ProtoTCP, p.Port).TTL)
	}
	return least
}

func touchTicks(idle time.Duration) uint32 {
	return uint32(min(max(ticks(idle)/touchShare, 1), 1<<30))
}
