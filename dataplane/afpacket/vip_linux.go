package afpacket

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// answer replies to a question for a VIP and reports whether frame was one. Only frames of
// a fitting length are looked into, so that bulk traffic pays for one comparison.
func (d *Device) answer(p *port, vips *vipSet, frame []byte) bool {
	if len(frame) > 128 || !vips.asked(frame) {
		return false
	}
	var room [virtioLen + 128]byte
	b, ok := vips.reply(room[virtioLen:virtioLen], frame, p.refresh())
	if !ok {
		return false
	}
	if _, err := unix.Write(p.fd, room[:virtioLen+len(b)]); err == nil {
		d.stats.answered.Add(1)
	}
	return true
}

// announce tells the interface's neighbours of VIPs.
func announce(p *port, vips *vipSet) {
	if vips == nil || p.gone.Load() {
		return
	}
	for _, f := range vips.announcements(p.refresh()) {
		// An interface that is down hears of it when it is back; neighbours ask anyway.
		_, _ = unix.Write(p.fd, append(make([]byte, virtioLen), f...))
	}
}

// follow has the kernel give the socket what concerns these VIPs: the solicitations for them, which interfaces filter by their
// multicast address (RFC 4861, 7.2.1; RFC 2464, 7), and with fanout the right queue's frames. The group's lock is held.
func (p *port) follow(vips *vipSet, fanout bool) error {
	if vips == nil || p.gone.Load() {
		return nil // done when the interface is back
	}
	want := map[[6]byte]bool{}
	for a := range vips.v6 {
		want[[6]byte{0x33, 0x33, 0xff, a[13], a[14], a[15]}] = true
	}
	if p.heard == nil {
		p.heard = map[[6]byte]bool{}
	}
	member := func(option int, group [6]byte) error {
		m := unix.PacketMreq{Ifindex: int32(p.index.Load()), Type: unix.PACKET_MR_MULTICAST, Alen: 6}
		copy(m.Address[:], group[:])
		err := unix.SetsockoptPacketMreq(p.fd, unix.SOL_PACKET, option, &m)
		if errors.Is(err, unix.ENODEV) { // it has just been removed
			return nil
		}
		return err
	}
	for a := range p.heard {
		if !want[a] {
			_ = member(unix.PACKET_DROP_MEMBERSHIP, a) // too much is harmless
			delete(p.heard, a)
		}
	}
	for a := range want {
		if !p.heard[a] {
			if err := member(unix.PACKET_ADD_MEMBERSHIP, a); err != nil {
				return fmt.Errorf("afpacket: interface %q: receive multicast % x: %w", p.name, a, err)
			}
			p.heard[a] = true
		}
	}
	if fanout {
		if err := p.attach(unix.SOL_PACKET, unix.PACKET_FANOUT_DATA, steer(vips)); err != nil {
			return fmt.Errorf("afpacket: interface %q: PACKET_FANOUT_DATA: %w", p.name, err)
		}
	}
	return nil
}
