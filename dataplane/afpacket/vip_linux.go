package afpacket

import "golang.org/x/sys/unix"

// answer replies to a question for a VIP and reports whether frame was one. Only frames of
// a fitting length are looked into, so that bulk traffic pays for one comparison.
func (d *Device) answer(p *port, vips *vipSet, frame []byte) bool {
	if len(frame) > 128 {
		return false
	}
	var room [virtioLen + 128]byte
	b, ok := vips.reply(room[virtioLen:virtioLen], frame, *p.mac.Load())
	if !ok {
		return false
	}
	if _, err := unix.Write(p.fd, room[:virtioLen+len(b)]); err == nil {
		d.stats.answered.Add(1)
	}
	return true
}

func (d *Device) announce(p *port) {
	vips := d.vips.Load()
	if vips == nil {
		return
	}
	for _, f := range vips.announcements(*p.mac.Load()) {
		// An interface that is down hears of it when it is reopened; neighbours ask anyway.
		_, _ = unix.Write(p.fd, append(make([]byte, virtioLen), f...))
	}
}
