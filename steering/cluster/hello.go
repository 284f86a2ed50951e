package cluster

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/lbprim/lbprim/steering/cluster/flowshare"
)

// A stream begins with a hello of who opens it, and the answer of the other side:
//
//	hello   "lbC1" | length 2 | oldest version 1 | newest version 1 | class 1 | cluster 1+n | from 1+n | epoch 8 |
//	        to 1+n | epoch 8
//	answer  "lbC1" | code 1 | version 1
//
// and then has frames, from the opener to the other side only:
//
//	frame   length 4 | number 8 | payload
//
// Numbers are big-endian; frames are numbered from 1.
const (
	magic0    = 'l'
	magic     = "lbC1"
	maxHello  = 1024
	frameHead = 4 + 8
)

// Versions of the protocol this package speaks.
const (
	oldestVersion = 1
	newestVersion = 1
)

// Classes of streams.
const (
	classFlows uint8 = iota
	classBulk
	classes
)

// Codes of answers.
const (
	welcome uint8 = iota
	otherVersion
	otherCluster
	otherMember
	otherClass
	notYet // the one who opens it is no member, as far as is known here
)

var errHello = errors.New("cluster: not a hello")

type hello struct {
	oldest, newest uint8
	class          uint8
	cluster        string
	from, to       flowshare.Member
}

func appendMember(b []byte, m flowshare.Member) []byte {
	b = append(append(b, byte(len(m.Name))), m.Name...)
	return binary.BigEndian.AppendUint64(b, m.Epoch)
}

func (h *hello) append(b []byte) []byte {
	body := []byte{h.oldest, h.newest, h.class, byte(len(h.cluster))}
	body = append(body, h.cluster...)
	body = appendMember(appendMember(body, h.from), h.to)
	b = binary.BigEndian.AppendUint16(append(b, magic...), uint16(len(body)))
	return append(b, body...)
}

func readHello(r io.Reader) (h hello, err error) {
	var head [len(magic) + 2]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return h, err
	}
	n := int(binary.BigEndian.Uint16(head[len(magic):]))
	if string(head[:len(magic)]) != magic || n > maxHello {
		return h, errHello
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return h, err
	}
	return parseHello(b)
}

func parseHello(b []byte) (h hello, err error) {
	text := func() (s string) {
		if len(b) == 0 || len(b) < 1+int(b[0]) {
			err = errHello
			return ""
		}
		n := 1 + int(b[0])
		s, b = string(b[1:n]), b[n:]
		return s
	}
	member := func() (m flowshare.Member) {
		m.Name = text()
		if err != nil || len(b) < 8 || m.Name == "" {
			err = errHello
			return m
		}
		m.Epoch, b = binary.BigEndian.Uint64(b), b[8:]
		return m
	}
	if len(b) < 3 {
		return h, errHello
	}
	h.oldest, h.newest, h.class, b = b[0], b[1], b[2], b[3:]
	h.cluster = text()
	if err == nil {
		h.from = member()
	}
	if err == nil {
		h.to = member()
	}
	if err != nil || len(b) > 0 {
		return hello{}, errHello
	}
	return h, nil
}

// agree returns the newest version that both speak.
func agree(oldA, newA, oldB, newB uint8) (uint8, bool) {
	v := min(newA, newB)
	return v, v >= oldA && v >= oldB && v > 0
}

func readAnswer(r io.Reader) (version uint8, err error) {
	var b [len(magic) + 2]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return 0, err
	}
	if string(b[:len(magic)]) != magic {
		return 0, errHello
	}
	switch b[len(magic)] {
	case welcome:
		return b[len(magic)+1], nil
	case otherVersion:
		return 0, errors.New("cluster: refused: no version of the protocol in common")
	case otherCluster:
		return 0, errors.New("cluster: refused: another cluster")
	case notYet:
		return 0, errors.New("cluster: refused: not known there as a member")
	case otherMember:
		return 0, errors.New("cluster: refused: another member, or another life of it")
	}
	return 0, fmt.Errorf("cluster: refused: code %d", b[len(magic)])
}

func appendAnswer(b []byte, code, version uint8) []byte {
	return append(append(b, magic...), code, version)
}

// readFrame reads a frame into buf, or a longer one. It must have the given number.
func readFrame(r io.Reader, buf []byte, number uint64) ([]byte, error) {
	var head [frameHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n == 0 || n > flowshare.MaxFrame {
		return nil, fmt.Errorf("%w: %d bytes, want 1 to %d", errFrame, n, flowshare.MaxFrame)
	}
	if no := binary.BigEndian.Uint64(head[4:]); no != number {
		return nil, fmt.Errorf("%w: number %d, want %d", errFrame, no, number)
	}
	if cap(buf) < int(n) {
		buf = make([]byte, n)
	}
	buf = buf[:n]
	_, err := io.ReadFull(r, buf)
	return buf, err
}

var errFrame = errors.New("cluster: frame refused")
