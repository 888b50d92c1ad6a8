! Times, counters and data exchanged, from inside a Fortran program: the same log that fairmile.meter writes.
!
!     use fairmile_meter
!     integer(c_int32_t) :: step
!     step = fairmile_timer('step')        ! once
!     call fairmile_start(step)            ! in the loop
!     call fairmile_stop(step)
!
! Compile it with fairmile_meter.c, which lies beside it; fairmile_meter.h tells what each procedure does. Blanks at the
! end of a text are left out. The program ends the log itself: at its END, at STOP, or by fairmile_finalise.
module fairmile_meter
  use, intrinsic :: iso_c_binding, only: c_char, c_double, c_float, c_int, c_int32_t, c_int64_t, c_null_char
  implicit none
  private

  integer(c_int), parameter, public :: fairmile_put = 0, fairmile_get = 1

  public :: c_int32_t, c_int64_t
  public :: fairmile_initialise, fairmile_finalise, fairmile_recording, fairmile_pause, fairmile_resume, fairmile_flush
  public :: fairmile_component, fairmile_metadata, fairmile_register_thread
  public :: fairmile_timer, fairmile_start, fairmile_stop, fairmile_start_string, fairmile_stop_string
  public :: fairmile_phase_start, fairmile_phase_stop, fairmile_counter, fairmile_sample, fairmile_event
  public :: fairmile_exchange, fairmile_exchange_begin, fairmile_exchange_ready, fairmile_exchange_end

  ! Iterations, versions and sizes may be integers of either kind.
  interface fairmile_phase_start
    module procedure phase_start_32, phase_start_64
  end interface
  interface fairmile_phase_stop
    module procedure phase_stop_32, phase_stop_64
  end interface
  interface fairmile_sample
    module procedure sample_real, sample_double
  end interface
  interface fairmile_exchange_end
    module procedure exchange_end_32, exchange_end_64, exchange_end_mixed
  end interface

  interface
    subroutine fairmile_initialise() bind(C, name='fairmile_initialise')
    end subroutine
    subroutine fairmile_finalise() bind(C, name='fairmile_finalise')
    end subroutine
    subroutine fairmile_pause() bind(C, name='fairmile_pause')
    end subroutine
    subroutine fairmile_resume() bind(C, name='fairmile_resume')
    end subroutine
    subroutine fairmile_flush() bind(C, name='fairmile_flush')
    end subroutine
    subroutine fairmile_start(timer) bind(C, name='fairmile_start')
      import :: c_int32_t
      integer(c_int32_t), value :: timer
    end subroutine
    subroutine fairmile_stop(timer) bind(C, name='fairmile_stop')
      import :: c_int32_t
      integer(c_int32_t), value :: timer
    end subroutine
    subroutine fairmile_exchange_begin(exchange) bind(C, name='fairmile_exchange_begin')
      import :: c_int32_t
      integer(c_int32_t), value :: exchange
    end subroutine
    subroutine fairmile_exchange_ready(exchange) bind(C, name='fairmile_exchange_ready')
      import :: c_int32_t
      integer(c_int32_t), value :: exchange
    end subroutine

    function c_recording() bind(C, name='fairmile_recording') result(answer)
      import :: c_int
      integer(c_int) :: answer
    end function
    subroutine c_component(name) bind(C, name='fairmile_component')
      import :: c_char
      character(kind=c_char), intent(in) :: name(*)
    end subroutine
    subroutine c_metadata(name, value) bind(C, name='fairmile_metadata')
      import :: c_char
      character(kind=c_char), intent(in) :: name(*), value(*)
    end subroutine
    subroutine c_register_thread(name) bind(C, name='fairmile_register_thread')
      import :: c_char
      character(kind=c_char), intent(in) :: name(*)
    end subroutine
    function c_timer(name) bind(C, name='fairmile_timer') result(handle)
      import :: c_char, c_int32_t
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int32_t) :: handle
    end function
    subroutine c_start_string(name) bind(C, name='fairmile_start_string')
      import :: c_char
      character(kind=c_char), intent(in) :: name(*)
    end subroutine
    subroutine c_stop_string(name) bind(C, name='fairmile_stop_string')
      import :: c_char
      character(kind=c_char), intent(in) :: name(*)
    end subroutine
    subroutine c_phase_start(prefix, iteration) bind(C, name='fairmile_phase_start')
      import :: c_char, c_int64_t
      character(kind=c_char), intent(in) :: prefix(*)
      integer(c_int64_t), value :: iteration
    end subroutine
    subroutine c_phase_stop(prefix, iteration) bind(C, name='fairmile_phase_stop')
      import :: c_char, c_int64_t
      character(kind=c_char), intent(in) :: prefix(*)
      integer(c_int64_t), value :: iteration
    end subroutine
    function c_counter(name) bind(C, name='fairmile_counter') result(handle)
      import :: c_char, c_int32_t
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int32_t) :: handle
    end function
    subroutine c_sample(counter, value) bind(C, name='fairmile_sample')
      import :: c_double, c_int32_t
      integer(c_int32_t), value :: counter
      real(c_double), value :: value
    end subroutine
    subroutine c_event(name) bind(C, name='fairmile_event')
      import :: c_char
      character(kind=c_char), intent(in) :: name(*)
    end subroutine
    function c_exchange(how, key, peer) bind(C, name='fairmile_exchange') result(handle)
      import :: c_char, c_int, c_int32_t
      integer(c_int), value :: how
      character(kind=c_char), intent(in) :: key(*), peer(*)
      integer(c_int32_t) :: handle
    end function
    subroutine c_exchange_end(exchange, version, bytes) bind(C, name='fairmile_exchange_end')
      import :: c_int32_t, c_int64_t
      integer(c_int32_t), value :: exchange
      integer(c_int64_t), value :: version, bytes
    end subroutine
  end interface

contains

  logical function fairmile_recording()
    fairmile_recording = c_recording() /= 0
  end function

  subroutine fairmile_component(name)
    character(len=*), intent(in) :: name
    call c_component(trim(name)//c_null_char)
  end subroutine

  subroutine fairmile_metadata(name, value)
    character(len=*), intent(in) :: name, value
    call c_metadata(trim(name)//c_null_char, trim(value)//c_null_char)
  end subroutine

  subroutine fairmile_register_thread(name)
    character(len=*), intent(in) :: name
    call c_register_thread(trim(name)//c_null_char)
  end subroutine

  function fairmile_timer(name) result(handle)
    character(len=*), intent(in) :: name
    integer(c_int32_t) :: handle
    handle = c_timer(trim(name)//c_null_char)
  end function

  subroutine fairmile_start_string(name)
    character(len=*), intent(in) :: name
    call c_start_string(trim(name)//c_null_char)
  end subroutine

  subroutine fairmile_stop_string(name)
    character(len=*), intent(in) :: name
    call c_stop_string(trim(name)//c_null_char)
  end subroutine

  subroutine phase_start_32(prefix, iteration)
    character(len=*), intent(in) :: prefix
    integer(c_int32_t), intent(in) :: iteration
    call c_phase_start(trim(prefix)//c_null_char, int(iteration, c_int64_t))
  end subroutine

  subroutine phase_start_64(prefix, iteration)
    character(len=*), intent(in) :: prefix
    integer(c_int64_t), intent(in) :: iteration
    call c_phase_start(trim(prefix)//c_null_char, iteration)
  end subroutine

  subroutine phase_stop_32(prefix, iteration)
    character(len=*), intent(in) :: prefix
    integer(c_int32_t), intent(in) :: iteration
    call c_phase_stop(trim(prefix)//c_null_char, int(iteration, c_int64_t))
  end subroutine

  subroutine phase_stop_64(prefix, iteration)
    character(len=*), intent(in) :: prefix
    integer(c_int64_t), intent(in) :: iteration
    call c_phase_stop(trim(prefix)//c_null_char, iteration)
  end subroutine

  function fairmile_counter(name) result(handle)
    character(len=*), intent(in) :: name
    integer(c_int32_t) :: handle
    handle = c_counter(trim(name)//c_null_char)
  end function

  subroutine sample_real(counter, value)
    integer(c_int32_t), intent(in) :: counter
    real(c_float), intent(in) :: value
    call c_sample(counter, real(value, c_double))
  end subroutine

  subroutine sample_double(counter, value)
    integer(c_int32_t), intent(in) :: counter
    real(c_double), intent(in) :: value
    call c_sample(counter, value)
  end subroutine

  subroutine fairmile_event(name)
    character(len=*), intent(in) :: name
    call c_event(trim(name)//c_null_char)
  end subroutine

  ! fairmile_put or fairmile_get; a peer need not be named.
  function fairmile_exchange(how, key, peer) result(handle)
    integer(c_int), intent(in) :: how
    character(len=*), intent(in) :: key
    character(len=*), intent(in), optional :: peer
    integer(c_int32_t) :: handle
    if (present(peer)) then
      handle = c_exchange(how, trim(key)//c_null_char, trim(peer)//c_null_char)
    else
      handle = c_exchange(how, trim(key)//c_null_char, c_null_char)
    end if
  end function

  subroutine exchange_end_32(exchange, version, bytes)
    integer(c_int32_t), intent(in) :: exchange, version, bytes
    call c_exchange_end(exchange, int(version, c_int64_t), int(bytes, c_int64_t))
  end subroutine

  subroutine exchange_end_64(exchange, version, bytes)
    integer(c_int32_t), intent(in) :: exchange
    integer(c_int64_t), intent(in) :: version, bytes
    call c_exchange_end(exchange, version, bytes)
  end subroutine

  subroutine exchange_end_mixed(exchange, version, bytes)
    integer(c_int32_t), intent(in) :: exchange, version
    integer(c_int64_t), intent(in) :: bytes
    call c_exchange_end(exchange, int(version, c_int64_t), bytes)
  end subroutine
end module fairmile_meter
