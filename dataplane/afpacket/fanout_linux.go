package afpacket

import (
	"fmt"
	"slices"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/lbprim/lbprim/internal/spread"
)

// fanout is the kernel's group of the sockets of all queues on one interface (packet(7), PACKET_FANOUT).
type fanout struct {
	id    int
	index uint32 // of the interface; one that returns has another, and a group of its own
}

// join makes the socket a member of its interface's group, or founds that with an id that no other program uses.
func (p *port) join(g *group) error {
	const kind = unix.PACKET_FANOUT_CBPF | unix.PACKET_FANOUT_FLAG_IGNORE_OUTGOING
	f, ok := g.fanout[p.name]
	if ok && f.index == p.index.Load() {
		err := unix.SetsockoptInt(p.fd, unix.SOL_PACKET, unix.PACKET_FANOUT, f.id|kind<<16)
		if err == nil {
			return nil
		}
		// All other members may have been closed, and the group with them. Found another.
		if !g.lonely(p) {
			return p.refusal(err)
		}
	}
	if err := unix.SetsockoptInt(p.fd, unix.SOL_PACKET, unix.PACKET_FANOUT, int(int32(uint32(kind|unix.PACKET_FANOUT_FLAG_UNIQUEID)<<16))); err != nil {
		return p.refusal(err)
	}
	v, err := unix.GetsockoptInt(p.fd, unix.SOL_PACKET, unix.PACKET_FANOUT)
	if err != nil {
		return p.refusal(err)
	}
	g.fanout[p.name] = fanout{id: v & 0xffff, index: p.index.Load()}
	return p.attach(unix.SOL_PACKET, unix.PACKET_FANOUT_DATA, steer(g.vips.Load()))
}

// lonely reports whether no other queue has a socket on p's interface. While queues are being opened, the first has.
func (g *group) lonely(p *port) bool {
	if len(g.queues) == 0 {
		return false
	}
	for _, q := range g.queues {
		for _, other := range q.ports {
			if other.name == p.name && !q.closed.Load() && !other.gone.Load() {
				return false
			}
		}
	}
	return true
}

func (p *port) refusal(err error) error {
	return fmt.Errorf("afpacket: interface %q: PACKET_FANOUT: %w (several queues need an interface that is up: ip link set dev %s up)", p.name, err, p.name)
}

// attach gives the socket a filter program.
func (p *port) attach(level, option int, program []unix.SockFilter) error {
	return unix.SetsockoptSockFprog(p.fd, level, option, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
}

// steer is the program that chooses a frame's queue by the client's endpoint: the kernel takes its result modulo the number of
// queues. It sees the frame from its network header on; the outer VLAN tag is off already, so there may be one more.
//
//	X = where the IP header begins
//	IPv4, IPv6:    destination is a VIP: M0 = source, else M0 = destination
//	TCP, UDP, …:   M1 = that side's port, else 0
//	return (fold(address) * c1 + port) * c2 >> 16, as package spread does
func steer(vips *vipSet) []unix.SockFilter {
	const (
		addr, port, side = 0, 1, 2 // scratch memory; side: how far the port lies in the transport header
		ip               = 3
		tci              = 4 // of a VLAN tag before the EtherType
	)
	var v4 [][4]byte
	var v6 [][16]byte
	if vips != nil {
		for a := range vips.v4 {
			v4 = append(v4, a)
		}
		for a := range vips.v6 {
			v6 = append(v6, a)
		}
	}
	slices.SortFunc(v4, func(a, b [4]byte) int { return slices.Compare(a[:], b[:]) })
	slices.SortFunc(v6, func(a, b [16]byte) int { return slices.Compare(a[:], b[:]) })
	word := func(b []byte) uint32 { return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3]) }

	var a assembler
	a.add(bpf.LoadExtension{Num: bpf.ExtProto})
	a.add(bpf.LoadConstant{Dst: bpf.RegX, Val: 0})
	a.jump(bpf.JumpEqual, etherIPv4, "ipv4")
	a.jump(bpf.JumpEqual, etherIPv6, "ipv6")
	a.jump(bpf.JumpEqual, 0x8100, "tagged")
	a.jump(bpf.JumpEqual, 0x88a8, "tagged")
	a.add(bpf.RetConstant{Val: 0})
	a.label("tagged")
	a.add(bpf.LoadConstant{Dst: bpf.RegX, Val: tci}, bpf.LoadAbsolute{Off: 2, Size: 2})
	a.jump(bpf.JumpEqual, etherIPv4, "ipv4")
	a.jump(bpf.JumpEqual, etherIPv6, "ipv6")
	a.add(bpf.RetConstant{Val: 0})

	a.label("ipv4")
	a.add(bpf.LoadIndirect{Off: 16, Size: 4})
	for _, vip := range v4 {
		a.jump(bpf.JumpEqual, word(vip[:]), "client4")
	}
	a.add(bpf.StoreScratch{Src: bpf.RegA, N: addr}, bpf.LoadConstant{Dst: bpf.RegA, Val: 2})
	a.jump(always, 0, "side4")
	a.label("client4")
	a.add(bpf.LoadIndirect{Off: 12, Size: 4}, bpf.StoreScratch{Src: bpf.RegA, N: addr}, bpf.LoadConstant{Dst: bpf.RegA, Val: 0})
	a.label("side4")
	a.add(bpf.StoreScratch{Src: bpf.RegA, N: side})
	a.add(bpf.LoadIndirect{Off: 6, Size: 2})
	a.jump(bpf.JumpBitsSet, 0x3fff, "noport") // a fragment: the later ones have no ports
	a.add(bpf.LoadIndirect{Off: 9, Size: 1}, bpf.StoreScratch{Src: bpf.RegA, N: ip})
	a.add(bpf.LoadIndirect{Off: 0, Size: 1}, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 15}, bpf.ALUOpConstant{Op: bpf.ALUOpShiftLeft, Val: 2})
	a.jump(always, 0, "transport")

	a.label("ipv6")
	for i, vip := range v6 {
		next := fmt.Sprint("not", i)
		for part := range 4 {
			a.add(bpf.LoadIndirect{Off: uint32(24 + 4*part), Size: 4})
			a.jump(bpf.JumpNotEqual, word(vip[4*part:]), next)
		}
		a.jump(always, 0, "client6")
		a.label(next)
	}
	a.fold6(24, addr)
	a.add(bpf.LoadConstant{Dst: bpf.RegA, Val: 2})
	a.jump(always, 0, "side6")
	a.label("client6")
	a.fold6(8, addr)
	a.add(bpf.LoadConstant{Dst: bpf.RegA, Val: 0})
	a.label("side6")
	a.add(bpf.StoreScratch{Src: bpf.RegA, N: side})
	a.add(bpf.LoadIndirect{Off: 6, Size: 1}, bpf.StoreScratch{Src: bpf.RegA, N: ip})
	a.add(bpf.LoadConstant{Dst: bpf.RegA, Val: 40})

	// A is the length of the IP header.
	a.label("transport")
	a.add(bpf.ALUOpX{Op: bpf.ALUOpAdd}, bpf.StoreScratch{Src: bpf.RegA, N: port}) // where the transport header begins
	a.add(bpf.LoadScratch{Dst: bpf.RegA, N: ip})
	for _, proto := range []uint32{6, 17, 132, 33, 136} { // TCP, UDP, SCTP, DCCP, UDP-Lite
		a.jump(bpf.JumpEqual, proto, "ports")
	}
	a.label("noport")
	a.add(bpf.LoadConstant{Dst: bpf.RegA, Val: 0})
	a.jump(always, 0, "hash")
	a.label("ports")
	a.add(bpf.LoadScratch{Dst: bpf.RegA, N: port}, bpf.LoadScratch{Dst: bpf.RegX, N: side}, bpf.ALUOpX{Op: bpf.ALUOpAdd}, bpf.TAX{}, bpf.LoadIndirect{Off: 0, Size: 2})
	a.label("hash")
	a.add(bpf.TAX{}, bpf.LoadScratch{Dst: bpf.RegA, N: addr})
	a.add(bpf.ALUOpConstant{Op: bpf.ALUOpMul, Val: spread.C1}, bpf.ALUOpX{Op: bpf.ALUOpAdd})
	a.add(bpf.ALUOpConstant{Op: bpf.ALUOpMul, Val: spread.C2}, bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: 16}, bpf.RetA{})
	return a.program()
}

// assembler resolves labels. Conditional jumps of classic BPF reach 255 instructions only, so each skips an unconditional one that
// reaches everywhere; all lead forward.
type assembler struct {
	code   []bpf.Instruction
	jumps  map[int]string
	labels map[string]int
}

const always bpf.JumpTest = 0xff

func (a *assembler) add(in ...bpf.Instruction) { a.code = append(a.code, in...) }

func (a *assembler) jump(test bpf.JumpTest, value uint32, to string) {
	if a.jumps == nil {
		a.jumps = map[int]string{}
	}
	if test != always {
		a.add(bpf.JumpIf{Cond: test, Val: value, SkipFalse: 1})
	}
	a.jumps[len(a.code)] = to
	a.add(bpf.Jump{})
}

func (a *assembler) label(name string) {
	if a.labels == nil {
		a.labels = map[string]int{}
	}
	a.labels[name] = len(a.code)
}

// fold6 stores the address at off from X as one word.
func (a *assembler) fold6(off uint32, to int) {
	const rest = 5 // scratch memory
	a.add(bpf.StoreScratch{Src: bpf.RegX, N: rest})
	a.add(bpf.LoadIndirect{Off: off, Size: 4}, bpf.StoreScratch{Src: bpf.RegA, N: to})
	for part := uint32(1); part < 4; part++ {
		a.add(bpf.LoadIndirect{Off: off + 4*part, Size: 4}, bpf.LoadScratch{Dst: bpf.RegX, N: to})
		a.add(bpf.ALUOpX{Op: bpf.ALUOpAdd}, bpf.ALUOpConstant{Op: bpf.ALUOpMul, Val: spread.C1}, bpf.StoreScratch{Src: bpf.RegA, N: to}, bpf.LoadScratch{Dst: bpf.RegX, N: rest})
	}
}

// program returns the machine code; nil if it were a bug of steer, which tests rule out.
func (a *assembler) program() []unix.SockFilter {
	for at, name := range a.jumps {
		a.code[at] = bpf.Jump{Skip: uint32(a.labels[name] - at - 1)}
	}
	var out []unix.SockFilter
	for _, in := range a.code {
		raw, err := in.Assemble()
		if err != nil {
			return nil
		}
		out = append(out, unix.SockFilter{Code: raw.Op, Jt: raw.Jt, Jf: raw.Jf, K: raw.K})
	}
	return out
}
