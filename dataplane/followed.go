package dataplane

import (
	"io"

	"github.com/lbprim/lbprim/clienttable"
)

// followed is the Replica of the associations. They have numbers of services, and while a message of them is read or written, none of
// these becomes another one's.
type followed struct{ p *Plane }

// LastSeq implements Replica.
func (f followed) LastSeq() uint64 { return f.p.followed.LastSeq() }

// AppendChanges implements Replica.
func (f followed) AppendChanges(b []byte, after uint64, limit int) (out []byte, last uint64, err error) {
	defer f.p.readers.leave(f.p.readers.enter())
	return f.p.followed.AppendChanges(b, after, limit)
}

// Apply implements Replica.
func (f followed) Apply(b []byte) error {
	defer f.p.readers.leave(f.p.readers.enter())
	return f.p.followed.Apply(b)
}

// Snapshot implements Replica.
func (f followed) Snapshot(w io.Writer) error {
	x := pauser{p: f.p, w: w, turn: f.p.readers.enter()}
	defer func() { f.p.readers.leave(x.turn) }()
	return f.p.followed.Snapshot(&x)
}

// Restore implements Replica.
func (f followed) Restore(r io.Reader) error {
	x := pauser{p: f.p, r: r, turn: f.p.readers.enter()}
	defer func() { f.p.readers.leave(x.turn) }()
	return f.p.followed.Restore(&x)
}

// pauser reads and writes between messages. As others may be slow, nobody has to wait for that to end.
type pauser struct {
	p    *Plane
	r    io.Reader
	w    io.Writer
	turn uint8 // of Plane.readers
}

// Read implements io.Reader.
func (x *pauser) Read(b []byte) (int, error) {
	x.p.readers.leave(x.turn)
	defer func() { x.turn = x.p.readers.enter() }()
	return x.r.Read(b)
}

// Write implements io.Writer.
func (x *pauser) Write(b []byte) (int, error) {
	x.p.readers.leave(x.turn)
	defer func() { x.turn = x.p.readers.enter() }()
	return x.w.Write(b)
}

// names reports whether the number of a service in an association stands for the service that a snapshot has under it. A change that the log
// remembers may be of a former one: then the association is no more, or is another one, which is told by a later change.
func (p *Plane) names(s *snapshot, k clienttable.Association, b binding) bool {
	svc := s.service(b.service)
	if svc == nil || !svc.again {
		return svc != nil
	}
	now, ok := p.assocs().Peek(k)
	return ok && now == b
}
