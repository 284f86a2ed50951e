package site

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

const (
	messageSize = 64
	// pace is about how long a client is silent between an answer and its next message.
	pace = 800 * time.Millisecond
	// answerWait is for how long a message may be lost: the kernels' retransmissions are up to twice as long apart as the failure was.
	answerWait = 50 * time.Second
)

// reply is the server's side of a connection.
func reply(c net.Conn, number byte) {
	if _, err := c.Write([]byte{number}); err != nil {
		return
	}
	b := make([]byte, 1+messageSize)
	b[0] = number
	for {
		if _, err := io.ReadFull(c, b[1:]); err != nil {
			return
		}
		if _, err := c.Write(b); err != nil {
			return
		}
	}
}

// talker is the client's side of a connection that sends random messages now and then, and wants each back from the server that it had first.
type talker struct {
	net.Conn
	client string
	server int

	mu   sync.Mutex
	n    int
	err  error
	over chan struct{}
	done chan struct{}
	once sync.Once
}

func newTalker(c net.Conn) (*talker, error) {
	k := &talker{Conn: c, client: c.LocalAddr().String(), over: make(chan struct{}), done: make(chan struct{})}
	b := make([]byte, 1)
	_ = c.SetDeadline(time.Now().Add(answerWait))
	if _, err := io.ReadFull(c, b); err != nil {
		c.Close()
		return nil, fmt.Errorf("%s: the server's number: %w", k.client, err)
	}
	k.server = int(b[0])
	go k.run()
	return k, nil
}

func (k *talker) run() {
	defer close(k.done)
	timer := time.NewTimer(rand.N(pace))
	defer timer.Stop()
	for {
		select {
		case <-k.over:
			return
		case <-timer.C:
		}
		err := k.exchange()
		k.mu.Lock()
		k.n++
		k.err = err
		k.mu.Unlock()
		if err != nil {
			return
		}
		timer.Reset(pace/2 + rand.N(pace))
	}
}

// exchange sends a message and compares what comes back.
func (k *talker) exchange() error {
	var sent [messageSize]byte
	for i := range sent {
		sent[i] = byte(rand.Uint32())
	}
	if err := k.SetDeadline(time.Now().Add(answerWait)); err != nil {
		return err
	}
	if _, err := k.Write(sent[:]); err != nil {
		return err
	}
	var got [1 + messageSize]byte
	if _, err := io.ReadFull(k, got[:]); err != nil {
		return err
	}
	if int(got[0]) != k.server || !bytes.Equal(got[1:], sent[:]) {
		return fmt.Errorf("server %d answers %x instead of %x", got[0], got[1:], sent[:])
	}
	return nil
}

func (k *talker) progress() (n int, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.n, k.err
}

func (k *talker) stop() {
	k.once.Do(func() {
		close(k.over)
		k.Close()
		<-k.done
	})
}
