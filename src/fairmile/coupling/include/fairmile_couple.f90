! A running simulation in Fortran asks a model: fields out, fields in, at every step.
!
!     use fairmile_couple
!     call fairmile_couple_rank(rank, size)                    ! only if there are several ranks
!     call fairmile_couple_out('temperature', t)               ! once
!     call fairmile_couple_in('heating', q)                    ! once
!     if (fairmile_couple_step() == fairmile_physics) call own_physics(t, q)   ! in the loop
!     call fairmile_couple_end()
!
! With a model in ranks of the same MPI job, take fairmile_couple_comm() in place of MPI_COMM_WORLD, after MPI_Init; it
! also tells rank and size. Then compile fairmile_couple.c by mpicc -DFAIRMILE_COUPLE_MPI.
!
! Compile it with fairmile_couple.c, which lies beside it; fairmile_couple.h has the settings. Fields are arrays of one to
! four dimensions, contiguous, with the attribute target or save, because their addresses are kept.
module fairmile_couple
  use, intrinsic :: iso_c_binding, only: c_char, c_double, c_float, c_int, c_int64_t, c_loc, c_null_char, c_ptr
  implicit none
  private

  integer(c_int), parameter, public :: fairmile_answered = 0, fairmile_held = 1, fairmile_physics = 2, fairmile_stop = 3
  integer(c_int), parameter :: is_float = 0, is_double = 1

  public :: fairmile_couple_comm
  public :: fairmile_couple_rank, fairmile_couple_out, fairmile_couple_in, fairmile_couple_step, fairmile_couple_end

  interface fairmile_couple_out
    module procedure out_double, out_float
  end interface
  interface fairmile_couple_in
    module procedure in_double, in_float
  end interface

  interface
    subroutine fairmile_couple_end() bind(C, name='fairmile_couple_end')
    end subroutine
    function fairmile_couple_comm() bind(C, name='fairmile_couple_comm_f') result(comm)
      import :: c_int
      integer(c_int) :: comm
    end function
    function fairmile_couple_step() bind(C, name='fairmile_couple_step') result(answer)
      import :: c_int
      integer(c_int) :: answer
    end function
    subroutine c_rank(rank, size) bind(C, name='fairmile_couple_rank')
      import :: c_int
      integer(c_int), value :: rank, size
    end subroutine
    subroutine c_field(label, values, kind, dims, shape, is_in, is_fortran) bind(C, name='fairmile_couple_field')
      import :: c_char, c_int, c_int64_t, c_ptr
      character(kind=c_char), intent(in) :: label(*)
      type(c_ptr), value :: values
      integer(c_int), value :: kind, dims, is_in, is_fortran
      integer(c_int64_t), intent(in) :: shape(*)
    end subroutine
  end interface

contains

  subroutine fairmile_couple_rank(rank, size)
    integer, intent(in) :: rank, size
    call c_rank(int(rank, c_int), int(size, c_int))
  end subroutine

  subroutine out_double(label, values)
    character(len=*), intent(in) :: label
    real(c_double), intent(in), contiguous, target :: values(..)
    call declare(label, c_loc(values), is_double, int(shape(values), c_int64_t), 0_c_int)
  end subroutine

  subroutine out_float(label, values)
    character(len=*), intent(in) :: label
    real(c_float), intent(in), contiguous, target :: values(..)
    call declare(label, c_loc(values), is_float, int(shape(values), c_int64_t), 0_c_int)
  end subroutine

  subroutine in_double(label, values)
    character(len=*), intent(in) :: label
    real(c_double), intent(inout), contiguous, target :: values(..)
    call declare(label, c_loc(values), is_double, int(shape(values), c_int64_t), 1_c_int)
  end subroutine

  subroutine in_float(label, values)
    character(len=*), intent(in) :: label
    real(c_float), intent(inout), contiguous, target :: values(..)
    call declare(label, c_loc(values), is_float, int(shape(values), c_int64_t), 1_c_int)
  end subroutine

  subroutine declare(label, place, kind, lengths, is_in)
    character(len=*), intent(in) :: label
    type(c_ptr), intent(in) :: place
    integer(c_int), intent(in) :: kind, is_in
    integer(c_int64_t), intent(in) :: lengths(:)
    call c_field(trim(label)//c_null_char, place, kind, int(size(lengths), c_int), lengths, is_in, 1_c_int)
  end subroutine
end module
